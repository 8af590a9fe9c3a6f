# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One rollout's training: the optimizer steps of its batch plan, one after another."""

from __future__ import annotations

from relax.algorithms.reduce import divisor_of
from relax.backends.base import LossFunction, Part, StepStats, TrainBackend
from relax.utils.errors import InternalError


class RolloutSteps:
    """The optimizer steps of one rollout. Their micro-batches may come in pieces, in the order of the batch plan.

    Gradients add up undivided over the pieces of a step and are scaled once, by the divisor of the whole step, which
    is known when its last piece is. So the pieces need not be known in advance, and their number changes nothing.
    """

    def __init__(self, backend: TrainBackend, loss: LossFunction) -> None:
        self._backend, self._loss = backend, loss
        self._counted: dict[int, float] = {}
        self._stats = StepStats()  # of the step in progress

    def count(self, first_step: int, divisors: tuple[float, ...]) -> None:
        """Add what groups of the steps `first_step`, `first_step + 1`, ... count for their divisors."""
        for step, counted in enumerate(divisors, first_step):
            self._counted[step] = self._counted.get(step, 0.0) + counted

    def train(self, step: int, part: Part, *, ends_step: bool) -> StepStats | None:
        """Add the gradient of a piece; with the last one, take the step and return what it measured. Collective."""
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
