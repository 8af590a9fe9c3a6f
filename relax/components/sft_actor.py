# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The actor of supervised fine-tuning: one optimizer step a task, and evaluation under the same loss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relax.algorithms.supervised.options import SupervisedOptions
from relax.backends.base import Part
from relax.components.actor import Actor
from relax.components.messages import TrainReport
from relax.components.rollout_training import train_report
from relax.components.sft_messages import TABLE, Measure, Measured, Ranks, SftTask, Uid
from relax.components.sft_rows import row_samples
from relax.components.sft_values import eval_values
from relax.components.training_data import part_checksums
from relax.data.columns import TrainSequence
from relax.distributed.bus.base import Block
from relax.engine.train_step import RolloutSteps
from relax.utils.errors import InternalError

REFERENCE_COLUMN = "ref_logprobs"  # of a loss that compares with the weights at the start
ALL_SAMPLES = 0  # uid of a row that holds the samples of every rank


class SftActor(Actor):
    """Trains packed samples in order. Everything else (weights, checkpoints, life) is that of the actor.

    consumes   sft        waits for   the producer
    produces   weights    feeds       engines, for predictions
    """

    def __init__(self, *, options: SupervisedOptions, per_rank_fetch: bool, **parts: Any) -> None:
        super().__init__(keep_reference=REFERENCE_COLUMN in options.columns, **parts)
        self._options, self._per_rank_fetch = options, per_rank_fetch
        self._fetching: dict[int, asyncio.Task[dict[Uid, TrainSequence]]] = {}  # step -> its samples

    async def fetch(self, task: SftTask) -> None:
        """Start reading; a rank that is given its samples by rank 0 gets them when they are trained."""
        if self._reads_alone and task.step not in self._fetching:
            self._fetching[task.step] = asyncio.create_task(self._read_step(task), name=f"actor.fetch-{task.step}")

    async def train_step(self, task: SftTask) -> TrainReport:
        """Take this rank's share of the step and make one optimizer step. Collective."""
        waited = self._clock.now()
        await self.fetch(task)
        reading = self._fetching.pop(task.step, None)
        samples = await reading if reading is not None else await self._shared(task)
        part = self._part(task.ranks, samples)
        wait_s = self._clock.now() - waited
        report = await self._blocking(self._train_step, task, part)
        self.step = task.step + 1
        seconds = {"data_wait": wait_s, **report.seconds}
        return replace(report, seconds=seconds, stop_requested=self.stop_requested)

    async def measure(self, task: Measure) -> Measured:
        """The loss of one micro-batch a rank under the current weights. Collective."""
        row = self._rank if self._reads_alone else None
        if row is not None:
            blocks = await self._bus.get(task.partition, (TABLE,), (row,), deadline_s=self._deadline_s)
            samples = _by_uid(blocks[TABLE].values())
        else:
            samples = await self._from_rank_0((task.partition,), range(len(task.ranks)))
        return await self._blocking(self._measure, self._part(task.ranks, samples))

    def _measure(self, part: Part) -> Measured:
        stats = self._backend.measure(self._compared(part), self._loss)
        return Measured(stats.sums, stats.counts)

    def _compared(self, part: Part) -> Part:
        """With the reference's log-probs, where the loss needs them."""
        return self._scored(part, REFERENCE_COLUMN, tag="ref") if self._keep_reference else part

    async def summary(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """See `SftActorHandle`."""
        return eval_values(self._options, sums, counts)

    async def objective(self) -> tuple[str, ...]:
        return self._loss.objective

    @property
    def _rank(self) -> int:
        if self.info is None:
            raise InternalError("the actor has not been started")
        return self.info.dp_rank

    @property
    def _reads_alone(self) -> bool:
        return self._per_rank_fetch or self.info is None or self.info.world_size == 1

    async def _read_step(self, task: SftTask) -> dict[Uid, TrainSequence]:
        row = self._rank if task.packed else ALL_SAMPLES
        return await self._read(task.partitions, (row,))

    async def _shared(self, task: SftTask) -> dict[Uid, TrainSequence]:
        return await self._from_rank_0(task.partitions, (ALL_SAMPLES,))

    async def _read(self, partitions: Sequence[str], rows: Sequence[int]) -> dict[Uid, TrainSequence]:
        found = await asyncio.gather(
            *(self._bus.get(name, (TABLE,), rows, deadline_s=self._deadline_s) for name in partitions)
        )
        return _by_uid([block for tables in found for block in tables[TABLE].values()])

    async def _from_rank_0(self, partitions: Sequence[str], rows: Sequence[int]) -> dict[Uid, TrainSequence]:
        """Rank 0 reads, the others are given what it read. Collective."""
        found: dict[Uid, TrainSequence] | None = None
        if self._rank == 0:
            found = await self._read(partitions, rows)
        shared = (await self._blocking(self._backend.gather, found))[0]
        if shared is None:
            raise InternalError("rank 0 gave the others no samples")
        return shared

    def _part(self, ranks: Ranks, samples: Mapping[Uid, TrainSequence]) -> Part:
        return Part(tuple(tuple(samples[uid] for uid in micro) for micro in ranks[self._rank]))

    def _train_step(self, task: SftTask, part: Part) -> TrainReport:
        part, steps = self._compared(part), RolloutSteps(self._backend, self._loss)
        steps.count(0, (task.divisor,))
        stats = steps.train(0, part, ends_step=True)
        if stats is None:
            raise InternalError("a whole step was given and not taken")
        self._trained.add(task.step, (sample for micro in part.micro_batches for sample in micro))
        self._contained, self._whole_steps = task.step + 1, self._backend.num_steps
        return train_report(task.step, [stats], {}, None, part_checksums([part]))

    async def stop(self) -> None:
        for reading in self._fetching.values():
            reading.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        self._fetching = {}
        await super().stop()


def _by_uid(blocks: Iterable[Block]) -> dict[Uid, TrainSequence]:
    return {sample.uid: sample for block in blocks for sample in row_samples(block.columns)}
