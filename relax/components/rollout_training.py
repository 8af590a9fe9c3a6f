# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What roles that train have in common: a rollout that comes in parts, what the weights contain, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from relax.backends.base import Part, RankInfo, StepStats, TrainBackend
from relax.components.base import Role
from relax.components.messages import ReleasedGroup, Settled, TrainReport, TrainTask
from relax.components.training_data import BatchSettings, Uid, plan_items, read_parts, start_plan
from relax.distributed.bus.base import Bus
from relax.engine.parity.difference import Difference
from relax.engine.train_step import RolloutSteps
from relax.schedule.batch_plan import BatchPlan, PlanPiece, StreamedPlan
from relax.schedule.clock import Clock
from relax.utils.errors import InternalError


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


class TrainingRole(Role):
    """One rank of a model that trains rollouts in order. A subclass says how: `_new_steps` and `_train`."""

    def __init__(
        self,
        *,
        backend: TrainBackend,
        settings: BatchSettings,
        bus: Bus,
        clock: Clock,
        deadline_s: float,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(executor)
        self._backend, self._settings, self._bus = backend, settings, bus
        self._clock, self._deadline_s = clock, deadline_s
        self.info: RankInfo | None = None
        self._contained = 0  # rollouts in the weights when `_whole_steps` optimizer steps had been taken
        self._whole_steps = 0
        self._asleep = False
        self._rollout: RolloutInTraining | None = None  # in training, while it comes in parts

    def _new_steps(self) -> RolloutSteps:
        """The optimizer steps of one rollout."""
        raise NotImplementedError

    def _train(
        self, task: TrainTask, rollout: RolloutInTraining, pieces: list[PlanPiece[Uid]], parts: list[Part]
    ) -> TrainReport:
        """Train the pieces. Blocking."""
        raise NotImplementedError

    async def train(self, task: TrainTask) -> TrainReport:
        """Read this rank's share, complete its columns, take the optimizer steps. Collective."""
        assert self.info is not None
        waited = self._clock.now()
        if task.first:
            plan = start_plan(self._settings, self.info.dp_size)
            self._rollout = RolloutInTraining(task.rollout_id, plan, self._new_steps())
        rollout = self._rollout
        if rollout is None or rollout.rollout_id != task.rollout_id:
            raise InternalError(f"a part of rollout {task.rollout_id} came without its first one")
        pieces = rollout.extend(task)
        parts = await read_parts(
            self._bus,
            task.rollout_id,
            rollout.groups,
            task.tables,
            BatchPlan(tuple(piece.ranks for piece in pieces)),
            self.info.dp_rank,
            deadline_s=self._deadline_s,
        )
        wait_s = self._clock.now() - waited
        report = await self._blocking(self._train, task, rollout, pieces, parts)
        if task.last:
            self._rollout = None
            self.step = task.rollout_id + 1
        seconds = {"data_wait": wait_s, **report.seconds}
        return replace(report, seconds=seconds, stop_requested=self.stop_requested)

    async def settle(self) -> Settled:
        """Wait for the work under way, then say what the weights contain. Not collective."""
        return await self._blocking(self._settled)

    def _settled(self) -> Settled:
        whole = self._backend.num_steps == self._whole_steps
        return Settled(self._contained if whole else None, self._backend.num_steps, self._asleep)

    async def offload(self) -> None:
        await self._blocking(self._backend.sleep)
        self._asleep = True

    async def onload(self) -> None:
        await self._blocking(self._backend.wake)
        self._asleep = False

    async def status(self) -> dict[str, Any]:
        return {**await super().status(), "rank": None if self.info is None else self.info.rank}

    async def stop(self) -> None:
        await self._blocking(self._backend.close)


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
