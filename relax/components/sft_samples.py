# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""An example as its loss wants it: next tokens, a class at the end, or a pair."""

from __future__ import annotations

from relax.algorithms.supervised.options import SupervisedOptions
from relax.algorithms.supervised.sequences import (
    Answered,
    class_sequence,
    preference_sequences,
    reward_sequences,
)
from relax.data.columns import TrainSequence
from relax.engine.sft.dataset.examples import PreferenceExample, SftExample, to_sequences
from relax.utils.errors import InternalError


def samples_of(example: SftExample | PreferenceExample, group: int, options: SupervisedOptions) -> list[TrainSequence]:
    """The samples of one unit, which stay in one micro-batch."""
    if isinstance(example, PreferenceExample):
        if options.loss_type == "reward_model":
            return list(reward_sequences(group, example.chosen.tokens, example.rejected.tokens))
        sides = (Answered(side.tokens, side.loss_mask) for side in (example.chosen, example.rejected))
        return list(preference_sequences(group, *sides))
    if options.pairs:
        raise InternalError(f"--loss-type {options.loss_type} got a row that is no pair")
    if options.task_type == "seq_cls":
        label = list(example.label) if isinstance(example.label, tuple) else example.label
        return [class_sequence(group, example.tokens, label, options)]
    return to_sequences(example, group)
