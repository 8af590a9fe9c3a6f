# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rollouts trained part after part, by the product's own plan and steps, on any number of ranks."""

from __future__ import annotations

from typing import Any

from relax.backends.base import Part
from relax.backends.fsdp.backend import FsdpBackend
from relax.engine.train_step import RolloutSteps
from relax.schedule.batch_plan import StreamedPlan
from tests.unit.backends.training_cases import ClippedPolicyLoss, gradients, groups

NUM_GROUPS, GROUP_SIZE, GROUPS_OF_STEP = 6, 2, 3
# Micro-batches of 2: three a step, so the second of two ranks has an empty one. Of 6: one, so it has nothing else.
MICRO_BATCH_SIZES = (2, 6)
COUNTED = 7.0  # what each group adds to the divisor


class Watched:
    """A backend that notes every gradient before a step."""

    def __init__(self, backend: FsdpBackend) -> None:
        self._backend = backend
        self.seen: list[dict[str, Any]] = []

    def backward(self, part: Part, loss: Any) -> Any:
        return self._backend.backward(part, loss)

    def step(self, divisor: float) -> Any:
        self.seen.append({"grads": gradients(self._backend), "divisor": divisor})
        return self._backend.step(divisor)


def train_rollouts(backend: FsdpBackend, rank: int, dp_size: int, part_size: int) -> list[dict[str, Any]]:
    """Two rollouts of two optimizer steps, in parts of `part_size` groups: what was seen at each step."""
    watched = Watched(backend)
    for rollout_id, micro_batch_size in enumerate(MICRO_BATCH_SIZES):
        rows = groups(num_groups=NUM_GROUPS, size=GROUP_SIZE, seed=rollout_id)
        found = {row.uid: row for row in rows}
        items = [
            [(row.uid, len(row.tokens)) for row in rows[start : start + GROUP_SIZE]]
            for start in range(0, len(rows), GROUP_SIZE)
        ]
        plan: StreamedPlan[tuple[int, int]] = StreamedPlan(
            groups_per_step=GROUPS_OF_STEP, dp_size=dp_size, max_tokens=None, micro_batch_size=micro_batch_size
        )
        steps = RolloutSteps(watched, ClippedPolicyLoss())  # type: ignore[arg-type]
        for start in range(0, NUM_GROUPS, part_size):
            part = items[start : start + part_size]
            whole_steps = max(1, len(part) // GROUPS_OF_STEP)
            steps.count(plan.step, (COUNTED * len(part) / whole_steps,) * whole_steps)
            for piece in plan.extend(part, last=start + part_size >= NUM_GROUPS):
                mine = Part(tuple(tuple(found[uid] for uid in micro) for micro in piece.ranks[rank]))
                stats = steps.train(piece.step, mine, ends_step=piece.ends_step)
                if stats is not None:
                    watched.seen[-1] |= {"sums": stats.sums, "counts": stats.counts, "norm": stats.grad_norm}
    return watched.seen
