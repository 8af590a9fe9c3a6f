# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Mixture-of-experts forward whose bits do not depend on how many rows an expert gets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from relax.backends.exact.segments import pad_to_product
from relax.utils.errors import ConfigError

NAME = "relax_padded_experts"


def register_experts() -> None:
    """Make the function known to transformers as `relax_padded_experts`. Idempotent."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(NAME, padded_experts)


def check_experts(module: nn.Module) -> None:
    """Refuse experts whose weights have another layout than `padded_experts` computes."""
    plain = {"has_bias": False, "is_transposed": False, "has_gate": True, "is_concatenated": True}
    other = [name for name, value in plain.items() if getattr(module, name, value) != value]
    if other or getattr(module, "has_post_expert_norm", False):
        raise ConfigError(f"experts of class {type(module).__name__} are not supported ({other or 'post norm'})")


def padded_experts(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Each expert computes its rows padded by `pad_to_product`; `[T, D]`, `[T, k]`, `[T, k]` -> `[T, D]`.

    `self` is the model's own experts module with fused `gate_up_proj [E, 2I, D]` and `down_proj [E, D, I]`.
    """
    total, chosen = top_k_index.shape
    expert = top_k_index.reshape(-1)
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=self.num_experts).tolist()
    up_weights, down_weights = self.gate_up_proj.unbind(0), self.down_proj.unbind(0)
    outputs = []
    for place, rows in enumerate(hidden_states[order // chosen].split(counts)):
        if len(rows):
            gate, up = F.linear(pad_to_product(rows), up_weights[place]).chunk(2, -1)
            outputs.append(F.linear(self.act_fn(gate) * up, down_weights[place])[: len(rows)])
    by_token = torch.cat(outputs)[order.argsort()].view(total, chosen, -1)
    return (by_token * top_k_weights[..., None].to(by_token.dtype)).sum(1).to(hidden_states.dtype)
