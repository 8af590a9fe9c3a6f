# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a supervised run teaches: next tokens, classes of texts, or preferences."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Section):
    """Head and loss of supervised training."""

    task_type: str = flag(
        "causal_lm",
        choices=("causal_lm", "seq_cls"),
        help="What --loss-type sft trains: the vocabulary head, or a head for the classes of whole texts.",
    )
    num_labels: int | None = flag(None, help="Classes K of --task-type seq_cls.", check=at_least(1))
    problem_type: str | None = flag(
        None,
        choices=("single_label_classification", "multi_label_classification"),
        help="Of --task-type seq_cls: one class a text (cross-entropy), or any number (one binary loss a class).",
    )
    classification_threshold: float = flag(
        0.5,
        help="Probability from which a class of a multi-label text counts as present in evaluation; no loss reads it.",
        check=lambda value: None if 0 < value < 1 else "must be > 0 and < 1",
    )
    dpo_beta: float = flag(0.1, help="Strength of the pull to the reference in --loss-type dpo.", check=above(0))
    dpo_reference_free: bool = flag(False, help="--loss-type dpo without a reference model.")
