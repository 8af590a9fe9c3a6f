# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The critic role: one rank of a model of its own that predicts the reward to come; its ranks are a `CriticHandle`."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from relax.backends.base import LossFunction, ModelSpec, OptimizerSpec, Part, RankInfo, TrainBackend
from relax.components.base import Role
from relax.components.messages import ForwardReport, ReleasedGroup, Settled, TrainReport, TrainTask, partition_of
from relax.components.rollout_training import RolloutInTraining, train_report
from relax.components.training_data import (
    BatchSettings,
    column_blocks,
    make_scoring_plan,
    part_checksums,
    read_parts,
    start_plan,
)
from relax.distributed.bus.base import Bus
from relax.engine.train_step import RolloutSteps
from relax.schedule.batch_plan import BatchPlan, PlanPiece
from relax.schedule.clock import Clock
from relax.utils.errors import InternalError

VALUES = frozenset({"values"})
BEFORE = "before"  # tag of the weights before the rollout in training, while it comes in parts


class Critic(Role):
    """Values each token of a rollout, then trains on its returns.

    consumes   rollout, media; critic, advantages   waits for   rollout; the advantages role
    produces   values                               feeds       advantages

    The values of a rollout are those of the weights before its training, however many parts it comes in. Calls come
    one after another: each is collective over the critic's ranks.
    """

    name = "critic"

    def __init__(
        self,
        *,
        backend: TrainBackend,
        loss: LossFunction,
        model: ModelSpec,
        optimizer: OptimizerSpec,
        settings: BatchSettings,
        bus: Bus,
        clock: Clock,
        deadline_s: float,
        start_weights: Path | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`start_weights` is a checkpoint whose weights replace those of the model's folder."""
        super().__init__(executor)
        self._backend, self._loss, self._model, self._optimizer = backend, loss, model, optimizer
        self._settings, self._bus, self._clock, self._deadline_s = settings, bus, clock, deadline_s
        self._start_weights = start_weights
        self.info: RankInfo | None = None
        self._contained = 0  # rollouts in the weights when `_whole_steps` optimizer steps had been taken
        self._whole_steps = 0
        self._asleep = False
        self._rollout: RolloutInTraining | None = None

    async def start(self) -> RankInfo:
        """Load the model. Collective."""
        self.info = await self._blocking(self._backend.open, self._model, self._optimizer)
        if self._start_weights is not None:
            await self._blocking(partial(self._backend.load, self._start_weights, optimizer=False))
        return self.info

    # ------------------------------------------------------------------ one rollout

    async def score(
        self, rollout_id: int, groups: tuple[ReleasedGroup, ...], first: bool = True, last: bool = True
    ) -> ForwardReport:
        """See `CriticHandle`. All ranks together write all groups."""
        assert self.info is not None
        waited = self._clock.now()
        plan = make_scoring_plan(groups, self._settings, self.info.dp_size)
        (part,) = await read_parts(
            self._bus, rollout_id, groups, (), plan, self.info.dp_rank, deadline_s=self._deadline_s
        )
        started = self._clock.now()
        scores = await self._blocking(self._score, part, first, last)
        await self._bus.put(partition_of(rollout_id), "critic", column_blocks(part, scores, {"values": "values"}))
        return ForwardReport(started - waited, self._clock.now() - started, self.stop_requested)

    def _score(self, part: Part, first: bool, last: bool) -> Any:
        whole = first and last
        if first and not last:
            self._backend.keep(BEFORE)
        found = self._backend.score(part, VALUES, "actor" if whole else BEFORE)
        if last and not whole:
            self._backend.forget(BEFORE)
        return found

    async def train(self, task: TrainTask) -> TrainReport:
        """Read this rank's share with its returns and take the optimizer steps. Collective."""
        assert self.info is not None
        waited = self._clock.now()
        if task.first:
            plan = start_plan(self._settings, self.info.dp_size)
            self._rollout = RolloutInTraining(task.rollout_id, plan, RolloutSteps(self._backend, self._loss))
        rollout = self._rollout
        if rollout is None or rollout.rollout_id != task.rollout_id:
            raise InternalError(f"a part of rollout {task.rollout_id} came without its first one")
        pieces = rollout.extend(task)
        plan = BatchPlan(tuple(piece.ranks for piece in pieces))
        parts = await read_parts(
            self._bus, task.rollout_id, rollout.groups, task.tables, plan, self.info.dp_rank,
            deadline_s=self._deadline_s,
        )  # fmt: skip
        wait_s = self._clock.now() - waited
        report = await self._blocking(self._train, task, rollout, pieces, parts)
        if task.last:
            self._rollout = None
            self.step = task.rollout_id + 1
        seconds = {"data_wait": wait_s, **report.seconds}
        return replace(report, seconds=seconds, stop_requested=self.stop_requested)

    def _train(
        self, task: TrainTask, rollout: RolloutInTraining, pieces: list[PlanPiece], parts: list[Part]
    ) -> TrainReport:
        done = [
            rollout.steps.train(piece.step, part, ends_step=piece.ends_step)
            for piece, part in zip(pieces, parts, strict=True)
        ]
        if task.last:
            self._contained, self._whole_steps = task.rollout_id + 1, self._backend.num_steps
        stats = [step for step in done if step is not None]
        return train_report(task.rollout_id, stats, {}, None, part_checksums(parts))

    # ------------------------------------------------------------------ between rollouts

    async def settle(self) -> Settled:
        """Wait for the work under way, then say what the weights contain. Not collective."""
        return await self._blocking(self._settled)

    def _settled(self) -> Settled:
        whole = self._backend.num_steps == self._whole_steps
        return Settled(self._contained if whole else None, self._backend.num_steps, self._asleep)

    async def save(self, folder: str) -> None:
        """Write weights and optimizer. Collective."""
        await self._blocking(self._backend.save, Path(folder))

    async def load(self, folder: str, contained: int) -> None:
        """Go on at a checkpoint that contains `contained` rollouts. Collective."""
        await self._blocking(self._backend.load, Path(folder))
        self._contained = self.step = contained
        self._whole_steps = self._backend.num_steps

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
