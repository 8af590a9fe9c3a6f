# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Low-rank adapters where trainer and engine must agree: one merge, one form of names.

The trainer's forward multiplies with `merged_weight`, and an engine that is given an adapter by itself builds the same
matrix by the same function from the same bits, so both compute the same log-probs.

Published adapters have peft's names: the matrix `model.layers.0.self_attn.q_proj.weight` is changed by
`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` `[rank, in]` and `...lora_B.weight` `[out, rank]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.backends.additions import LoraSpec

if TYPE_CHECKING:
    from torch import Tensor

A, B = "lora_A", "lora_B"
PEFT_PREFIX = "base_model.model."


def merged_weight(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale * B A in W's type, `[out, in]`, added in float32 at least.

    Copies of A and B lie at addresses of their own, because the bits of a product may follow the alignment.
    """
    import torch

    wide = torch.promote_types(weight.dtype, torch.float32)
    delta = b.to(wide, copy=True) @ a.to(wide, copy=True)
    return (weight.to(wide) + delta * scale).to(weight.dtype)


def is_adapter(name: str) -> bool:
    """Of a parameter's name."""
    return name.rpartition(".")[2] in (A, B)


def peft_name(name: str) -> str:
    """The model's `...q_proj.lora_A` is peft's `base_model.model....q_proj.lora_A.weight`."""
    return f"{PEFT_PREFIX}{name}.weight"


def adapted_matrix(published: str) -> tuple[str, str] | None:
    """(name of the matrix, A or B) of a tensor with peft's name; None for any other tensor."""
    if not published.startswith(PEFT_PREFIX) or not published.endswith(".weight"):
        return None
    owner, _, half = published.removeprefix(PEFT_PREFIX).removesuffix(".weight").rpartition(".")
    return (f"{owner}.weight", half) if half in (A, B) and owner else None


def peft_config(spec: LoraSpec, adapters: Iterable[str], base: Path, head: str | None = None) -> dict[str, Any]:
    """`adapter_config.json` as peft reads it. `adapters` are parameters' names in the model."""
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if head else "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": spec.dropout,
        "target_modules": sorted({name.rpartition(".")[0] for name in adapters}),
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": [head] if head else None,
        "inference_mode": True,
    }
