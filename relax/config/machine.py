# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What this machine offers, asked without importing torch."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The facts that defaults depend on."""

    gpus: int = 0  # CUDA cards that this process may use
    sglang: bool = False  # SGLang can be imported
    megatron: bool = False  # Megatron Core can be imported
    sft_shards: str | None = None  # the environment's RELAX_SFT_TQ_SHARDS

    @classmethod
    def here(cls) -> Machine:
        return cls(
            gpus=visible_gpus(),
            sglang=_found("sglang"),
            megatron=_found("megatron"),
            sft_shards=os.environ.get("RELAX_SFT_TQ_SHARDS"),
        )


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """CUDA cards of this machine that CUDA_VISIBLE_DEVICES leaves."""
    cards = sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return cards
    named = [word for word in visible.split(",") if word.strip() and word.strip() != "-1"]
    return min(cards, len(named))


def _found(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
