# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The critic role: one rank of a model of its own that predicts the reward to come; its ranks are a `CriticHandle`."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

from relax.backends.base import LossFunction, ModelSpec, OptimizerSpec, Part, RankInfo, TrainBackend
from relax.components.messages import ForwardReport, ReleasedGroup, TrainReport, TrainTask, partition_of
from relax.components.rollout_training import RolloutInTraining, TrainingRole, train_report
from relax.components.training_data import (
    BatchSettings,
    Uid,
    column_blocks,
    make_scoring_plan,
    part_checksums,
    read_parts,
)
from relax.distributed.bus.base import Bus
from relax.engine.train_step import RolloutSteps
from relax.schedule.batch_plan import PlanPiece
from relax.schedule.clock import Clock

VALUES = frozenset({"values"})
BEFORE = "before"  # tag of the weights before the rollout in training, while it comes in parts


class Critic(TrainingRole):
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
        super().__init__(
            backend=backend, settings=settings, bus=bus, clock=clock, deadline_s=deadline_s, executor=executor
        )
        self._loss, self._model, self._optimizer, self._start_weights = loss, model, optimizer, start_weights

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

    def _new_steps(self) -> RolloutSteps:
        return RolloutSteps(self._backend, self._loss)

    def _train(
        self, task: TrainTask, rollout: RolloutInTraining, pieces: list[PlanPiece[Uid]], parts: list[Part]
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

    async def save(self, folder: str) -> None:
        """Write weights and optimizer. Collective."""
        await self._blocking(self._backend.save, Path(folder))

    async def load(self, folder: str, contained: int) -> None:
        """Go on at a checkpoint that contains `contained` rollouts. Collective."""
        await self._blocking(self._backend.load, Path(folder))
        self._contained = self.step = contained
        self._whole_steps = self._backend.num_steps
