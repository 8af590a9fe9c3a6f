# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One rollout's training: the optimizer steps of its batch plan, one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from relax.algorithms.reduce import divisor_of
from relax.algorithms.statistic import ScoredSequence, StepStatistic
from relax.backends.base import LossFunction, Part, StepStats, TrainBackend
from relax.utils.errors import InternalError


class RolloutSteps:
    """The optimizer steps of one rollout. Their micro-batches may come in pieces, in the order of the batch plan.

    Gradients add up undivided over the pieces of a step and are scaled once, by the divisor of the whole step, which
    is known when its last piece is. So the pieces need not be known in advance, and their number changes nothing.

    A `statistic` is a number of the whole step that the loss reads: it costs one forward pass under the weights that
    are about to be trained, and it needs the step in one piece.
    """

    def __init__(self, backend: TrainBackend, loss: LossFunction, statistic: StepStatistic | None = None) -> None:
        self._backend, self._loss, self._statistic = backend, loss, statistic
        self._counted: dict[int, float] = {}
        self._stats = StepStats()  # of the step in progress

    def count(self, first_step: int, divisors: tuple[float, ...]) -> None:
        """Add what groups of the steps `first_step`, `first_step + 1`, ... count for their divisors."""
        for step, counted in enumerate(divisors, first_step):
            self._counted[step] = self._counted.get(step, 0.0) + counted

    def train(self, step: int, part: Part, *, ends_step: bool) -> StepStats | None:
        """Add the gradient of a piece; with the last one, take the step and return what it measured. Collective."""
        if self._statistic is not None:
            if not ends_step or self._stats.counts:
                raise InternalError(
                    f"optimizer step {step} came in pieces, and {self._statistic.column} is of a whole"
                )
            part = self._measured(part, self._statistic)
        self._stats.add(self._backend.backward(part, self._loss))
        if not ends_step:
            return None
        if step not in self._counted:
            raise InternalError(f"optimizer step {step} of the rollout has no divisor")
        total, self._stats = self._stats, StepStats()
        stepped = self._backend.step(divisor_of(self._counted.pop(step)))
        total.grad_norm, total.lr, total.gradient = stepped.grad_norm, stepped.lr, stepped.gradient
        total.add(stepped)
        return total

    def _measured(self, part: Part, statistic: StepStatistic) -> Part:
        """The part with the statistic of the step as one more column, the same on every rank. Collective."""
        scores = self._backend.score(part, frozenset({"log_probs"}))
        mine = [
            ScoredSequence(
                log_probs=scores[sequence.uid]["log_probs"],
                keep=(sequence.loss_mask > 0) & (sequence.columns["loss_weight"] > 0),
                columns=sequence.columns,
            )
            for micro in part.micro_batches
            for sequence in micro
        ]
        found = statistic.value(np.concatenate(self._backend.gather(statistic.local(mine))))
        for name, (total, count) in found.metrics.items():
            self._stats.terms[name], self._stats.counts[name] = [total], count
        column = lambda length: np.full(length, found.column, np.float32)  # noqa: E731
        return Part(
            tuple(
                tuple(replace(s, columns={**s.columns, statistic.column: column(s.response_len)}) for s in micro)
                for micro in part.micro_batches
            )
        )
