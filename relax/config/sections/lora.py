# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Section):
    """LoRA: the model is frozen and low-rank additions to its matrices are trained."""

    lora_rank: int = flag(0, help="Rank of the adapters; 0 trains the whole model.", check=at_least(0))
    lora_alpha: float = flag(32.0, help="Adapters are scaled by alpha / rank.", check=above(0))
    lora_target_modules: tuple[str, ...] = flag(
        ("linear_qkv", "linear_proj"),
        choices=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "router", "in_proj", "out_proj"),
        help="Matrices with an adapter, by Megatron's names.",
    )
    lora_scope: str = flag(
        "all",
        choices=("all", "language", "vision"),
        help="Parts of the model that get adapters, whatever the names of their matrices.",
    )
    lora_dropout: float = flag(
        0.0,
        help="Share of an adapter's inputs that a training pass sets to 0.",
        check=lambda value: None if 0 <= value < 1 else "must be >= 0 and < 1",
    )
    lora_merge_mode: bool = flag(
        False, help="Adapters are added into the matrices for engines and exports. The default of the two modes."
    )
    lora_adapter_mode: bool = flag(
        False, help="Engines get the adapter alone and add it to the matrices they have; exports hold it alone, too."
    )
    save_lora_only: bool = flag(False, help="Checkpoints hold what is trained, and not the frozen model.")
