# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Numbers of a whole optimizer step that an objective needs before the step's first micro-batch. No torch here.

A loss sees one micro-batch, so what depends on all tokens of a step cannot be computed there. The actor scores the
step under the current weights, every rank collects `local` of its sequences, and `value` of all of them becomes a
column that is equal for every token: it depends neither on micro-batches nor on ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions


class ScoredSequence(NamedTuple):
    """One sequence of the step under the weights that are about to be trained. `R` = response tokens."""

    log_probs: np.ndarray  # float32 [R]
    keep: np.ndarray  # bool [R], sampled and trained, with a loss weight
    columns: Mapping[str, np.ndarray]  # each [R]


class StepValue(NamedTuple):
    column: float  # what every token of the step gets
    metrics: Mapping[str, tuple[float, float]]  # {name: (sum, count)}, as a loss reports its terms


class StepStatistic(Protocol):
    """A pure function of the trained tokens of a step, in two halves."""

    column: str  # under which name `policy` finds the value

    def local(self, sequences: Sequence[ScoredSequence]) -> np.ndarray:
        """What one rank knows, float64; those of all ranks are joined in the order of ranks."""
        ...

    def value(self, joined: np.ndarray) -> StepValue: ...


def old_column(options: AlgorithmOptions) -> str | None:
    """The column of the old log-probs; None when the current ones take their place, so that every ratio is 1."""
    return {"rollout": "rollout_logprobs", "old": "old_logprobs", "current": None}[options.old_log_probs]
