# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What roles that train have in common: a rollout that comes in parts, and the report on its optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relax.backends.base import StepStats
from relax.components.messages import ReleasedGroup, TrainReport, TrainTask
from relax.components.training_data import Uid, plan_items
from relax.engine.parity.difference import Difference
from relax.engine.train_step import RolloutSteps
from relax.schedule.batch_plan import PlanPiece, StreamedPlan


@dataclass
class RolloutInTraining:
    """The rollout in training, part after part."""

    rollout_id: int
    plan: StreamedPlan[Uid]
    steps: RolloutSteps
    groups: list[ReleasedGroup] = field(default_factory=list)
    checked: bool = False  # against the engines, with the first micro-batches

    def extend(self, task: TrainTask) -> list[PlanPiece[Uid]]:
        """Take in a part and return what may be trained now. A later part may be needed to fill a micro-batch."""
        self.groups += task.groups
        self.steps.count(self.plan.step, task.divisors)
        return self.plan.extend(plan_items(task.groups), last=task.last)


def train_report(
    rollout_id: int,
    stats: Sequence[StepStats],
    seconds: dict[str, float],
    difference: Difference | None,
    checksums: dict[str, dict[tuple[int, int], str]],
) -> TrainReport:
    """Sums over the optimizer steps, gauges of the last one. `seconds` is added to."""
    sums: dict[str, list[float]] = {}
    for step in stats:
        for name, total in step.sums.items():
            into = sums.setdefault(name, [0.0, 0.0])
            into[0] += total
            into[1] += step.counts.get(name, 0.0)
        for name, value in step.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
    gauges = {"grad_norm": stats[-1].grad_norm, "lr": stats[-1].lr} if stats else {}
    return TrainReport(
        rollout_id=rollout_id,
        num_steps=len(stats),
        metrics={name: (total, count) for name, (total, count) in sums.items() if count},
        gauges={name: value for name, value in gauges.items() if value is not None},
        seconds=seconds,
        engine_difference=difference,
        steps=tuple(
            {"sums": s.sums, "counts": s.counts, "grad_norm": s.grad_norm, "lr": s.lr, "gradient": s.gradient}
            for s in stats
        ),
        checksums=checksums,
    )
