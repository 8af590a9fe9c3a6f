# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The producer of supervised fine-tuning (`sft`): rows of the files to packed samples on the bus, on the CPU.

One step has one producer, or one a shard. The loop asks for a shard's units, plans all units of the step together and
has the samples written where their rank takes them, so nothing that is trained depends on the number of shards or
workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from relax.components.base import Role
from relax.components.sft_messages import TABLE, Drawn, EvalUnits, Rows, SftData, Uid
from relax.components.sft_order import ShardOrder
from relax.components.sft_prefetch import Prefetcher
from relax.components.sft_render import Rendered, SftRenderer, skip_counts
from relax.components.sft_rows import row_columns
from relax.data.columns import TrainSequence
from relax.distributed.bus.base import Block, Bus
from relax.schedule.clock import Clock
from relax.utils.errors import DataError, InternalError
from relax.utils.faults import pause_at

Run = Callable[..., Awaitable[Any]]  # (function of the renderer, *arguments), in a worker
EVAL_CHUNK = 32


@dataclass(frozen=True)
class ProducerSettings:
    shard: ShardOrder
    buffer: int = 256
    chunk: int = 32
    workers: int = 4


class SftProducer(Role):
    """Renders the rows of its shard in the order of the stream, ahead of their use.

    loop       consumes         produces          waits for               freed by
    prefetch   rows of files    rendered units    a worker                the next draw
    draw       rendered units   a step's units    the prefetch            the loop's write
    write      a step's units   rows on the bus   nothing                 the loop's drop, when the step is trained
    """

    name = "sft"

    def __init__(
        self,
        *,
        data: SftData,
        renderer: SftRenderer,
        run: Run,
        settings: ProducerSettings,
        bus: Bus,
        clock: Clock,
        close: Callable[[], None] | None = None,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(executor)
        self._data, self._renderer, self._run, self._settings = data, renderer, run, settings
        self._bus, self._clock, self._close = bus, clock, close
        end = renderer.order.end
        self._ahead: Prefetcher[Rendered] = Prefetcher(
            self._render,
            buffer=settings.buffer,
            chunk=settings.chunk,
            workers=settings.workers,
            end=None if end is None else settings.shard.count(end),
        )
        self._drawn: dict[int, dict[Uid, TrainSequence]] = {}  # step -> samples that are not written yet
        self._evaluation: tuple[EvalUnits, ...] | None = None
        self._kept: dict[Uid, TrainSequence] = {}  # evaluation samples without media

    async def data(self) -> SftData:
        return self._data

    async def draw(self, step: int, start: int) -> Drawn:
        """See `ProducerHandle`."""
        shard, end = self._settings.shard, self._renderer.order.end
        waited = 0.0
        kept: list[Rendered] = []
        seen: list[Rendered] = []
        count = start
        while len(kept) < shard.size:
            if end is not None and shard.position(count) >= end:
                return Drawn((), count, skip_counts(seen), stop_requested=self.stop_requested)
            started = self._clock.now()
            found = await self._ahead.get(count)
            waited += self._clock.now() - started
            count += 1
            seen.append(found)
            if found.unit is not None:
                kept.append(found)
            self._refuse_endless_skipping(seen, kept)
        self._ahead.start(count)
        self._drawn[step] = {sample.uid: sample for found in kept for sample in found.samples}
        self.step = step
        return Drawn(
            tuple(found.unit for found in kept if found.unit is not None),
            count,
            skip_counts(seen),
            wait_s=waited,
            rendered_s=sum(found.seconds for found in seen),
            stop_requested=self.stop_requested,
        )

    def _refuse_endless_skipping(self, seen: Sequence[Rendered], kept: Sequence[Rendered]) -> None:
        if not kept and len(seen) >= self._data.train_rows:
            raise DataError(
                f"--prompt-data: none of {len(seen)} rows can be trained on ({dict(skip_counts(seen))}); see "
                "--sft-oversize-strategy and --sft-invalid-multimodal-strategy"
            )

    async def _render(self, counts: Sequence[int]) -> Sequence[Rendered]:
        positions = [self._settings.shard.position(count) for count in counts]
        return await self._run(SftRenderer.train, positions)

    async def write(self, step: int, rows: tuple[Rows, ...]) -> None:
        """See `ProducerHandle`. What was drawn for the step is forgotten."""
        samples = self._drawn.pop(step, None)
        if samples is None:
            raise InternalError(f"step {step} was written before it was drawn, or twice")
        await pause_at("put")
        for one in rows:
            await self._put(one, samples)

    async def _put(self, rows: Rows, samples: dict[Uid, TrainSequence]) -> None:
        await self._bus.put(rows.partition, TABLE, await self._blocking(_blocks, rows, samples))

    async def drop(self, partition: str) -> None:
        await self._bus.drop(partition)

    # ------------------------------------------------------------------ evaluation

    async def eval_units(self) -> tuple[EvalUnits, ...]:
        """Render every evaluation row once; their samples are kept, unless they hold media."""
        if self._evaluation is None:
            self._evaluation = tuple([await self._eval_set(name) for name in self._renderer.evals])
        return self._evaluation

    async def _eval_set(self, name: str) -> EvalUnits:
        number = len(self._renderer.evals[name].rows)
        chunks = [range(first, min(first + EVAL_CHUNK, number)) for first in range(0, number, EVAL_CHUNK)]
        rendered: list[Rendered] = []
        for first in range(0, len(chunks), self._settings.workers):
            some = chunks[first : first + self._settings.workers]
            for found in await asyncio.gather(*(self._run(SftRenderer.evaluation, name, chunk) for chunk in some)):
                rendered += found
        for found in rendered:
            self._kept |= {sample.uid: sample for sample in found.samples if not sample.media}
        units = tuple(found.unit for found in rendered if found.unit is not None)
        if not units:
            raise DataError(f"evaluation set {name}: none of its {number} rows can be used: {skip_counts(rendered)}")
        return EvalUnits(name, units, skip_counts(rendered))

    async def write_eval(self, rows: Rows) -> None:
        """See `ProducerHandle`."""
        wanted = [uid for _, uids in rows.shares for uid in uids]
        samples = {uid: self._kept[uid] for uid in wanted if uid in self._kept}
        again = {group for group, _ in wanted} - {group for group, _ in samples}
        for name, places in self._renderer.places(sorted(again)).items():
            for found in await self._run(SftRenderer.evaluation, name, places):
                samples |= {sample.uid: sample for sample in found.samples}
        await self._put(rows, samples)

    async def stop(self) -> None:
        await self._ahead.close()
        if self._close is not None:
            close, self._close = self._close, None
            await self._blocking(close)


def _blocks(rows: Rows, samples: dict[Uid, TrainSequence]) -> list[Block]:
    return [Block(row, row_columns([samples[uid] for uid in uids])) for row, uids in rows.shares]
