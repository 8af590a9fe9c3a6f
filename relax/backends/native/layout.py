# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How the weights of linear layers lie in memory: input by input, so that a product reads them as they lie.

Hugging Face keeps them output by output, and a product over few rows then spends most of its time on turning them
(MKL, one thread, 512 inputs to 128 outputs: 16 rows 169 us, and 31 us turned; 64 rows 233 and 94). The sums are the
same, and whether the bits are too is looked at before the layout is used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from relax.backends.exact.segments import MIN_ROWS

_ROWS = (MIN_ROWS, 20, 36, 64, 128)
_OUTPUTS = 1024  # columns of a product that are compared: enough for the kernel of wide layers


def input_major(weight: Tensor) -> Tensor:
    """The same numbers `[..., outputs, inputs]`, each input's numbers side by side in memory of their own."""
    return weight.mT.clone(memory_format=torch.contiguous_format).mT


def linear_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights of linear layers and fused experts by name in the state dict, without those tied to an embedding."""
    looked_up = {m.weight.data_ptr() for m in model.modules() if isinstance(m, nn.Embedding)}
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if type(module) is nn.Linear and module.weight.data_ptr() not in looked_up:
            found[f"{prefix}weight"] = module.weight
        elif isinstance(getattr(module, "gate_up_proj", None), nn.Parameter):
            found[f"{prefix}gate_up_proj"] = module.gate_up_proj
            found[f"{prefix}down_proj"] = module.down_proj
    return found


@torch.no_grad()
def turning_keeps_bits(weights: dict[str, Tensor]) -> bool:
    """Whether products of all these shapes have the same bits in both layouts on this machine."""
    matrices = [weight if weight.ndim == 2 else weight[0] for weight in weights.values()]
    for weight in {tuple(m.shape): m for m in matrices}.values():
        part = weight[:_OUTPUTS]
        rows = torch.randn(_ROWS[-1], part.shape[1], generator=torch.Generator().manual_seed(1)).to(part)
        turned = input_major(part)
        if any(not torch.equal(F.linear(rows[:n], part), F.linear(rows[:n], turned)) for n in _ROWS):
            return False
    return True
