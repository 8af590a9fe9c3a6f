# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Low-rank adapters: y = (W + alpha / rank * B A) x with W frozen.

The forward multiplies with the merged matrix, which is the very matrix that `weights()` gives engines and exports: so
trainer and engine agree to the bit, as they do without adapters. The backward never forms a gradient of W:

    dA = scale * (dy B)^T x        dB = scale * dy^T (x A^T)        dx = dy (W + scale * B A)

With dropout (on the adapter's input, in training passes alone) the two products are computed apart.

Source: LoRA, arXiv:2106.09685 sec. 4.1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from relax.backends.additions import LORA_MATRICES, LoraSpec
from relax.backends.exact.low_rank import A, B, is_adapter, merged_weight
from relax.utils.errors import ConfigError, InternalError

# Megatron's names of matrices -> names of linear layers in transformers' encoders.
_ENCODER = {
    "linear_qkv": ("qkv", "q_proj", "k_proj", "v_proj", "q", "k", "v"),
    "linear_proj": ("proj", "o_proj", "out_proj"),
    "linear_fc1": ("linear_fc1", "fc1", "gate_proj", "up_proj"),
    "linear_fc2": ("linear_fc2", "fc2", "down_proj"),
}


class _MergedProduct(torch.autograd.Function):
    """x (W + scale * B A)^T + bias, with the gradients of A, B and x alone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale = scale
        return F.linear(x, merged_weight(weight, a, b, scale), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        rows, grad_rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        grad_a = ctx.scale * ((grad_rows @ b).t() @ rows)
        grad_b = ctx.scale * (grad_rows.t() @ (rows @ a.t()))
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_rows @ merged_weight(weight, a, b, ctx.scale)).view(x.shape)
        return grad_x, None, None, grad_a, grad_b, None


class DropoutKey:
    """What the dropout of a pass is drawn from: a counter, so that a pass computed again draws the same."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = self.micro_batch = self.rank = 0

    def generator(self, layer: int, device: torch.device) -> torch.Generator:
        text = f"lora-dropout {self.seed} {self.rank} {self.step} {self.micro_batch} {layer}"
        key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
        return torch.Generator(device).manual_seed(key)


class LoraLinear(nn.Linear):
    """A linear layer with an adapter; `weight` and `bias` are those of the layer that it replaces."""

    def __init__(self, base: nn.Linear, spec: LoraSpec, layer: int, key: DropoutKey) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout, self.layer, self.key = spec.scale, spec.dropout, layer, key
        generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + layer)
        bound = 1.0 / math.sqrt(base.in_features)  # as torch starts a linear layer, and peft an adapter
        drawn = (torch.rand(spec.rank, base.in_features, generator=generator) * 2 - 1) * bound
        self.lora_A = nn.Parameter(drawn.to(base.weight))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, spec.rank).to(base.weight))

    def forward(self, x: Tensor) -> Tensor:
        if self.dropout and torch.is_grad_enabled():
            noise = torch.rand(x.shape, generator=self.key.generator(self.layer, x.device), device=x.device)
            kept = x * (noise >= self.dropout) / (1.0 - self.dropout)
            return (
                F.linear(x, self.weight, self.bias) + F.linear(F.linear(kept, self.lora_A), self.lora_B) * self.scale
            )
        return _MergedProduct.apply(x, self.weight, self.bias, self.lora_A, self.lora_B, self.scale)


def add_adapters(hf: nn.Module, text_model: nn.Module, towers: dict[str, nn.Module], spec: LoraSpec) -> DropoutKey:
    """Replace the matrices that `spec` names, in place. Raises `ConfigError` for a target that is not there."""
    key = DropoutKey(spec.seed)
    trees = [(text_model, LORA_MATRICES)] if spec.scope in ("all", "language") else []
    if spec.scope in ("all", "vision"):
        trees += [(tower, _ENCODER) for name, tower in towers.items() if spec.scope == "all" or name == "visual"]
    if not trees:
        raise ConfigError(f"--lora-scope vision: {type(hf).__name__} has no vision encoder")
    if spec.scope != "vision":
        _refuse_experts(text_model, spec)
    found: dict[str, int] = dict.fromkeys(spec.targets, 0)
    for root, names in trees:
        for target in spec.targets:
            for parent, leaf, module in list(_named_children(root, names.get(target, ()))):
                if not isinstance(module, nn.Linear):
                    raise ConfigError(
                        f"--lora-target-modules {target}: {leaf} of {type(hf).__name__} is a {type(module).__name__}, "
                        "which cannot have an adapter in this version; leave it out"
                    )
                setattr(parent, leaf, LoraLinear(module, spec, sum(found.values()), key))
                found[target] += 1
    absent = [target for target, count in found.items() if not count]
    if absent:
        raise ConfigError(
            f"--lora-target-modules {' '.join(absent)}: {type(hf).__name__} has no such matrices in --lora-scope "
            f"{spec.scope}; it has {' '.join(sorted(t for t, n in found.items() if n)) or 'none of those named'}"
        )
    return key


def _named_children(root: nn.Module, leaves: tuple[str, ...]) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in root.modules():
        for leaf, module in parent.named_children():
            if leaf in leaves and not isinstance(module, LoraLinear):
                yield parent, leaf, module


def _refuse_experts(text_model: nn.Module, spec: LoraSpec) -> None:
    """Experts are one fused tensor a layer: an adapter that skipped them would train another model than it says."""
    wanted = {"linear_fc1", "linear_fc2"} & set(spec.targets)
    fused = next((type(m).__name__ for m in text_model.modules() if hasattr(m, "gate_up_proj")), None)
    if wanted and fused is not None and not isinstance(_gate_up(text_model), nn.Linear):
        raise ConfigError(
            f"--lora-target-modules {' '.join(sorted(wanted))}: the experts of this model ({fused}) are fused and "
            "take no adapters in this version; use linear_qkv linear_proj"
        )


def _gate_up(text_model: nn.Module) -> Any:
    return next(m.gate_up_proj for m in text_model.modules() if hasattr(m, "gate_up_proj"))


def adapter_names(weight: str) -> tuple[str, str]:
    """Names of A and B of the matrix `weight`."""
    owner, dot, leaf = weight.rpartition(".")
    if leaf != "weight":
        raise InternalError(f"{weight} is no matrix of a linear layer")
    return f"{owner}{dot}{A}", f"{owner}{dot}{B}"


def trained_with_adapters(name: str) -> bool:
    """What is trained beside the frozen model: adapters, heads that the checkpoint does not hold, MTP layers."""
    return is_adapter(name) or name.startswith(("score.", "value_head.", "mtp."))
