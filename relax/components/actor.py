# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The actor role: one training rank. Every rank gets the same calls; the group of ranks is one `ActorHandle`."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from relax.algorithms.statistic import StepStatistic
from relax.backends.base import LossFunction, ModelSpec, OptimizerSpec, Part, RankInfo, TrainBackend
from relax.components.adapter_versions import AdapterVersions
from relax.components.messages import ForwardReport, ReleasedGroup, TrainReport, TrainTask
from relax.components.rollout_training import RolloutInTraining, TrainingRole, train_report
from relax.components.scoring import score_groups
from relax.components.student_ids import write_student_ids
from relax.components.trained import TrainedLedger
from relax.components.training_data import BatchSettings, Uid, part_checksums
from relax.distributed.bus.base import Bus
from relax.distributed.checkpoint_service.base import WeightManifest, WeightPublisher
from relax.engine.parity.gate import ParityGate
from relax.engine.train_step import RolloutSteps
from relax.schedule.batch_plan import PlanPiece
from relax.schedule.clock import Clock
from relax.utils.errors import InternalError
from relax.utils.faults import pause_at

SCORE = frozenset({"log_probs"})


class Actor(TrainingRole):
    """Trains rollouts in order and publishes weights. Holds the model, the optimizer and, for a KL, a reference copy.

    consumes   rollout, media, ref, actor_fwd, advantages   waits for   their producers
    produces   weights                                      feeds       engines, actor_fwd
               ref, when it is the one that holds the reference and advantages need it
    """

    name = "actor"

    def __init__(
        self,
        *,
        backend: TrainBackend,
        loss: LossFunction,
        model: ModelSpec,
        optimizer: OptimizerSpec,
        settings: BatchSettings,
        bus: Bus,
        publisher: WeightPublisher | None,
        clock: Clock,
        deadline_s: float,
        keep_reference: bool = False,
        statistic: StepStatistic | None = None,
        parity: ParityGate | None = None,
        executor: Executor | None = None,
        adapter_alone: bool = False,
    ) -> None:
        """`adapter_alone`: published versions hold the adapter that `model` is trained with, and no matrix."""
        super().__init__(
            backend=backend, settings=settings, bus=bus, clock=clock, deadline_s=deadline_s, executor=executor
        )
        self._loss, self._model, self._optimizer, self._publisher = loss, model, optimizer, publisher
        self._keep_reference, self._parity, self._statistic = keep_reference, parity, statistic
        self._trained = TrainedLedger()
        self._adapters = AdapterVersions(model, publisher) if adapter_alone else None

    async def start(self) -> RankInfo:
        """Load the model. Collective."""
        self.info = await self._blocking(self._backend.open, self._model, self._optimizer)
        if self._keep_reference:
            await self._blocking(self._backend.keep, "ref")
        return self.info

    async def score(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport:
        """Write the table `ref` with the kept reference, where advantages need it before training. Collective."""
        assert self.info is not None
        report = await score_groups(
            rollout_id,
            groups,
            table="ref",
            column="ref_logprobs",
            tag="ref",
            backend=self._backend,
            info=self.info,
            settings=self._settings,
            bus=self._bus,
            clock=self._clock,
            deadline_s=self._deadline_s,
            blocking=self._blocking,
        )
        return replace(report, stop_requested=self.stop_requested)

    async def propose(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport:
        """See `ActorHandle`. Collective."""
        assert self.info is not None
        return await write_student_ids(
            self._backend, self.info, rollout_id, groups, settings=self._settings, bus=self._bus, clock=self._clock,
            deadline_s=self._deadline_s, blocking=self._blocking,
        )  # fmt: skip

    def _new_steps(self) -> RolloutSteps:
        return RolloutSteps(self._backend, self._loss, self._statistic)

    def _train(
        self, task: TrainTask, rollout: RolloutInTraining, pieces: list[PlanPiece[Uid]], parts: list[Part]
    ) -> TrainReport:
        seconds: dict[str, float] = {}
        # A later part is scored when the weights may have moved on.
        old_tag = "actor" if task.first and task.last else "old"
        if task.score_old and task.first and not task.last:
            self._backend.keep(old_tag)
        if task.score_reference:
            start = self._clock.now()
            parts = [self._scored(part, "ref_logprobs", tag="ref") for part in parts]
            seconds["reference"] = self._clock.now() - start
        if task.score_old:
            start = self._clock.now()
            parts = [self._scored(part, "old_logprobs", tag=old_tag) for part in parts]
            seconds["old_log_probs"] = self._clock.now() - start
        difference = None
        if self._parity is not None and parts and not rollout.checked and self._parity.due(task.rollout_id):
            start = self._clock.now()
            difference = self._parity.check(
                self._backend, parts[0], task.rollout_id, exact=self.info is not None and self.info.exact
            )
            seconds["parity"] = self._clock.now() - start
        rollout.checked |= bool(parts)
        done = [
            rollout.steps.train(piece.step, part, ends_step=piece.ends_step)
            for piece, part in zip(pieces, parts, strict=True)
            if task.update
        ]
        stats = [step for step in done if step is not None]
        self._trained.add(task.rollout_id, (s for part in parts for micro in part.micro_batches for s in micro))
        if task.last:
            self._contained, self._whole_steps = task.rollout_id + 1, self._backend.num_steps
        return train_report(task.rollout_id, stats, seconds, difference, part_checksums(parts))

    def _scored(self, part: Part, column: str, *, tag: str) -> Part:
        """The part with one more column, computed by a forward pass under the weights `tag`."""
        scores = self._backend.score(part, SCORE, tag)
        return Part(
            tuple(
                tuple(replace(s, columns={**s.columns, column: scores[s.uid]["log_probs"]}) for s in micro)
                for micro in part.micro_batches
            )
        )

    async def publish(self, version: int) -> WeightManifest | None:
        """Write the weights as `version`; rank 0 returns the manifest. Collective."""
        await pause_at("publish")
        return await self._blocking(self._publish, version)

    def _publish(self, version: int) -> WeightManifest | None:
        if self._parity is not None:
            self._parity.published(self._backend, version)
        if self._adapters is not None:
            return self._adapters.publish(self._backend, version)
        if self._publisher is not None:
            return self._publisher.publish(version, self._backend.weights())
        for _ in self._backend.weights():  # the iterator is collective: every rank walks it
            pass
        return None

    async def send_weights(self, version: int, num_receivers: int, group_name: str) -> None:
        """Broadcast a published version to engines that have joined `group_name` (transports without a folder)."""
        if self._publisher is None:
            raise InternalError("only training rank 0 sends weights")
        await self._blocking(self._publisher.send, version, num_receivers, group_name)  # type: ignore[attr-defined]

    async def refresh_reference(self) -> None:
        """The current weights become the reference (--ref-update-interval)."""
        await self._blocking(self._backend.keep, "ref")

    async def save(self, folder: str, reference: str | None = None) -> None:
        """Write weights, optimizer and what was trained to `folder`, the kept reference to `reference`. Collective."""
        await self._blocking(self._backend.save, Path(folder))
        await pause_at("save")
        await self._blocking(self._save_rest, Path(folder), reference)

    def _save_rest(self, folder: Path, reference: str | None) -> None:
        assert self.info is not None
        self._trained.save(folder, self.info.rank, self._contained)
        if reference is not None:
            self._backend.save(Path(reference), "ref")

    async def load(self, folder: str, contained: int, reference: str | None = None) -> None:
        """Go on at a checkpoint that contains `contained` rollouts. Collective."""
        await self._blocking(self._load, Path(folder), contained, reference)
        self.step = contained

    def _load(self, folder: Path, contained: int, reference: str | None) -> None:
        assert self.info is not None
        if self._parity is not None:
            self._parity.replacing_initial(self._backend)
        if reference is not None:
            self._backend.load(Path(reference), optimizer=False)
            self._backend.keep("ref")
        self._backend.load(folder)
        self._trained.load(folder, self.info.rank)
        if self._adapters is not None:
            self._adapters.weights_replaced()
        self._contained, self._whole_steps = contained, self._backend.num_steps

    async def export_hf(self, folder: str) -> None:
        await self._blocking(self._backend.export_hf, Path(folder))

    async def stop(self) -> None:
        await super().stop()
        if self._publisher is not None:
            await self._blocking(self._publisher.close)
