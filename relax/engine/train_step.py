# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One rollout's training: the optimizer steps of its batch plan, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from relax.backends.base import LossFunction, Part, StepStats, TrainBackend


def train_rollout(
    backend: TrainBackend, steps: Sequence[Part], loss: LossFunction, divisors: Sequence[float]
) -> list[StepStats]:
    """Take one optimizer step for each part and return what each measured. Collective.

    Args:
        divisors: what the gradient sum of each step is divided by, the same number on every rank.
    """
    return [train_step(backend, [part], loss, divisor) for part, divisor in zip(steps, divisors, strict=True)]


def train_step(backend: TrainBackend, parts: Sequence[Part], loss: LossFunction, divisor: float) -> StepStats:
    """One optimizer step from one or several streamed parts, given in the order of the batch plan."""
    total = StepStats()
    for part in parts:
        _add(total, backend.backward(part, loss))
    stepped = backend.step(divisor)
    total.grad_norm, total.lr, total.gradient = stepped.grad_norm, stepped.lr, stepped.gradient
    _add(total, stepped)
    return total


def _add(total: StepStats, part: StepStats) -> None:
    for name in ("sums", "counts", "seconds"):
        into = getattr(total, name)
        for key, value in getattr(part, name).items():
            into[key] = into.get(key, 0.0) + value
