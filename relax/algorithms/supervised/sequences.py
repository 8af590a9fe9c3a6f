# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows of labelled data as training sees them, and the weights and divisor of one optimizer step of them.

A sequence that is read as a whole has one response token, a mark that is never computed: its prediction is made at the
last real token. So its columns have one entry, and it counts as one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from relax.algorithms.reduce import StepReduction, divisor_of, step_reduction
from relax.algorithms.supervised.options import SupervisedOptions
from relax.data.columns import TrainSequence
from relax.utils.errors import DataError, InternalError

_MARK = 0  # id of the token that is never computed


class Answered(NamedTuple):
    """One rendered answer of a preference pair."""

    tokens: Sequence[int]  # prompt and answer
    loss_mask: Sequence[int]  # one for each token, 1 where it is the answer's


def class_sequence(number: int, tokens: Sequence[int], label: int | Sequence[int] | None, options: SupervisedOptions):
    """A text to classify. `label` as in the row; None where it is only to be predicted.

    Raises `DataError`, without naming file and row, for a label that does not fit the problem.
    """
    sequence = whole_sequence(number, 0, tokens)
    if label is not None:
        sequence.columns["label"] = label_column(label, options)
    return sequence


def label_column(label: object, options: SupervisedOptions) -> np.ndarray:
    """A row's label as the losses read it: `[1]` a class index, or `[1, K]` with 1 for each class that applies."""
    classes = options.num_labels or 0
    if not options.multi_label:
        if isinstance(label, bool) or not isinstance(label, int | np.integer) or not 0 <= label < classes:
            raise DataError(
                f"label {label!r} is not a class index: --problem-type {options.problem_type} with --num-labels "
                f"{classes} takes an integer from 0 to {classes - 1}"
            )
        return np.asarray([label], np.float32)
    given: Any = label.tolist() if isinstance(label, np.ndarray) else label
    whole = isinstance(given, list | tuple)
    right = whole and all(isinstance(c, int) and not isinstance(c, bool) and 0 <= c < classes for c in given)
    if not right or len(set(given)) != len(given):
        raise DataError(
            f"label {label!r} is not a list of class indices: --problem-type {options.problem_type} with --num-labels "
            f"{classes} takes a list of different integers from 0 to {classes - 1}, such as [0, 2]; [] is allowed"
        )
    column = np.zeros((1, classes), np.float32)
    column[0, list(given)] = 1.0
    return column


def preference_sequences(number: int, chosen: Answered, rejected: Answered) -> tuple[TrainSequence, TrainSequence]:
    """A pair for DPO. Only tokens of the mask count; what stands before the first of them is the prompt."""
    return _answer(number, 0, chosen), _answer(number, 1, rejected)


def reward_sequences(
    number: int, chosen: Sequence[int], rejected: Sequence[int]
) -> tuple[TrainSequence, TrainSequence]:
    """A pair for a reward model: two whole rendered conversations."""
    pair = whole_sequence(number, 0, chosen), whole_sequence(number, 1, rejected)
    for place, sequence in enumerate(pair):
        sequence.columns["preferred"] = np.asarray([1 - place], np.float32)
    return pair


def whole_sequence(number: int, index: int, tokens: Sequence[int]) -> TrainSequence:
    """A sequence that is read at its last token."""
    if not len(tokens):
        raise DataError(f"row {number} renders to no token: nothing to read")
    return TrainSequence(
        group=number,
        index=index,
        tokens=np.asarray([*tokens, _MARK], np.int32),
        prompt_len=len(tokens),
        loss_mask=np.ones(1, np.uint8),
    )


def _answer(number: int, index: int, answer: Answered) -> TrainSequence:
    name = ("chosen", "rejected")[index]
    mask = np.asarray(answer.loss_mask, np.uint8)
    trained = np.flatnonzero(mask)
    if len(mask) != len(answer.tokens):
        raise InternalError(f"row {number}: {len(mask)} mask entries for {len(answer.tokens)} tokens of {name}")
    if not len(trained) or trained[0] == 0:
        raise DataError(f"row {number}: the {name} answer has no token, or no prompt before it")
    prompt_len = int(trained[0])
    sequence = TrainSequence(number, index, np.asarray(answer.tokens, np.int32), prompt_len, mask[prompt_len:])
    sequence.columns["preferred"] = np.full(len(mask) - prompt_len, 1 - index, np.float32)
    return sequence


def supervised_reduction(
    sequences: Sequence[TrainSequence], options: SupervisedOptions, *, mode: str = "token_mean"
) -> StepReduction:
    """Weights and divisor of one optimizer step, given all its sequences on all ranks.

    Next tokens are averaged by `mode`, classes over sequences. Pairs are averaged over pairs, and their losses weigh
    tokens by the mask alone.
    """
    masks = [sequence.loss_mask for sequence in sequences]
    if options.pairs:
        if len(sequences) % 2:
            raise InternalError(f"{len(sequences)} sequences in a step of pairs")
        weights = [(np.asarray(mask) > 0).astype(np.float32) for mask in masks]
        pairs = len(sequences) // 2
        return StepReduction(weights, divisor_of(pairs), len(sequences), int(sum(w.sum() for w in weights)), pairs)
    return step_reduction(masks, mode="sample_mean" if options.task_type == "seq_cls" else mode)
