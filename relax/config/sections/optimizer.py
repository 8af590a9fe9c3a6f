# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""AdamW and its schedule. A step is an optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Check, Section, above, at_least, flag


def _beta(value: float) -> str | None:
    return None if 0 <= value < 1 else "must be >= 0 and < 1"


BETA: Check = _beta


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section):
    """AdamW, gradient clipping and the learning-rate schedule."""

    optimizer: str = flag("adam", choices=("adam",), help="adam is AdamW: weight decay is decoupled.")
    lr: float = flag(1e-6, help="Highest learning rate.", check=at_least(0))
    min_lr: float = flag(0.0, help="Learning rate at the end of the decay.", check=at_least(0))
    lr_warmup_iters: int = flag(0, help="Steps of linear warm-up.", check=at_least(0))
    lr_decay_style: str = flag("constant", choices=("constant", "linear", "cosine"), help="Shape of the decay.")
    lr_decay_iters: int | None = flag(
        None, help="Steps to reach --min-lr, warm-up included.", check=at_least(1), shown="all steps of the run"
    )
    adam_beta1: float = flag(0.9, help="Decay of the first moment.", check=BETA)
    adam_beta2: float = flag(0.95, help="Decay of the second moment.", check=BETA)
    adam_eps: float = flag(1e-8, help="Added to the root of the second moment.", check=above(0))
    weight_decay: float = flag(0.0, help="Decoupled weight decay.", check=at_least(0))
    clip_grad: float = flag(
        1.0, help="Largest norm of the whole gradient; 0 switches clipping off.", check=at_least(0)
    )
