# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Layers with linear attention (gated delta nets) in a packed training forward: each sequence by itself.

Their state runs along a sequence, so a packed row is cut at the sequences' borders and every piece goes through the
layer's own forward. Prompts cannot be shared: a response would need the state behind its prompt. No engine of ours
computes these layers, so a model that has them trains (supervised, or as a forward-only role) and is never exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from relax.backends.exact.segments import AttentionPlan
from relax.utils.errors import InternalError

KIND = "linear_attention"  # in `config.layer_types`
_LAYER = "linear_attn"  # attribute of a decoder layer


def recurrent_layers(text_model: nn.Module) -> list[nn.Module]:
    """The linear attention of each layer that has it."""
    return [getattr(layer, _LAYER) for layer in text_model.layers if hasattr(layer, _LAYER)]


def install(text_model: nn.Module) -> None:
    """Let these layers read the plan of the forward, as attention does."""
    for layer in recurrent_layers(text_model):
        layer.forward = functools.partial(by_sequence, functools.partial(type(layer).forward, layer))


def by_sequence(
    forward: Callable[..., Tensor], hidden_states: Tensor, relax_plan: AttentionPlan | None = None, **_: Any
) -> Tensor:
    """`[1, T, D]` -> `[1, T, D]`; rows behind the last sequence are padding and stay 0."""
    if relax_plan is None or relax_plan.sequences is None:
        raise InternalError("layers with linear attention need sequences that are packed whole")
    pieces = [forward(hidden_states=hidden_states[:, start:end]) for start, end in relax_plan.sequences]
    joined = torch.cat(pieces, 1)
    return nn.functional.pad(joined, (0, 0, 0, hidden_states.shape[1] - joined.shape[1]))
