# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The rollout role: admitted prompts to scored groups, on the bus when the scheduler has bound them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relax.components.base import Role
from relax.components.details import DetailsWriter
from relax.components.elastic import EngineRequests, Refused
from relax.components.engines import EngineFleet
from relax.components.messages import (
    AcceptedGroup,
    EngineOrder,
    EngineStatus,
    EvalReport,
    GroupOrder,
    ReleasedGroup,
    ReleaseReport,
    RolloutReport,
    StoredGroup,
    partition_of,
    rollout_of,
)
from relax.components.rollout_metrics import release_metrics
from relax.data.chat import OverlongPrompt, PreparedPrompt
from relax.data.columns import group_columns, media_columns, shared_media
from relax.data.datasets import PromptDataset, RawRow
from relax.distributed.bus.base import Block, Bus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.trace import TraceEntry, TraceWriter, read_block, read_notes, sync_files
from relax.engine.rollout.groups import AdmittedGroup, FinishedGroup, GroupGenerator
from relax.engine.rollout.prompts import prompt_sample
from relax.engine.rollout.results import result_path, sample_row, write_results
from relax.schedule import events as ev
from relax.schedule.clock import Clock
from relax.schedule.journal import FLUSH_INTERVAL_S, Journal
from relax.utils.errors import DataError, InternalError, RelaxError
from relax.utils.faults import pause_at
from relax.utils.types import MediaFeatures, Sample

logger = logging.getLogger(__name__)

UPDATE_HOLD_S = 600.0
DUMP_DEADLINE_S = 300.0  # the columns of a trained rollout are on the bus already
Prepare = Callable[[RawRow], Coroutine[Any, Any, PreparedPrompt]]
SampleFilter = Callable[[Sequence[Sequence[Sample]]], None]  # with its args bound
PostProcess = Callable[[Sequence[Sample]], tuple[list[float], list[float]]]  # a group -> raw rewards, rewards
Evaluate = Callable[[int], Coroutine[Any, Any, tuple[dict[str, float], list[Sample]]]]


@dataclass
class ReadyGroup:
    """A finished group that waits to be bound; the same whether it ended here or was read back from the trace."""

    block: Block
    entry: TraceEntry
    media: tuple[MediaFeatures, ...]  # distinct items
    places: tuple[tuple[int, ...], ...]  # which of them each sample has; (): each has all
    rows: list[dict[str, Any]]  # of the result file, one a sample, without the rollout's number
    seconds: Mapping[str, float]  # {"generate", "score", "reward_queue"}

    @property
    def accepted(self) -> AcceptedGroup:
        versions = self.block.columns["weight_version"]
        sampled = versions[versions >= 0]
        oldest, newest = (int(sampled.min()), int(sampled.max())) if len(sampled) else (0, 0)
        return AcceptedGroup(self.block.uid, oldest, newest, self.entry)


@dataclass(frozen=True)
class RolloutSettings:
    n_samples_per_prompt: int
    reward_key: str | None = None
    result_dir: Path | None = None  # run folder of the JSONL results; None writes none
    interrupt_for_weights: bool = False  # --partial-rollout: running responses go on under the new weights
    generate_timeout_s: float = 1800.0  # of one sample; bounds the wait for protected ones
    drop_overlong: bool = True  # leave prompts above the limit out; False ends the run
    in_order: bool = False  # groups are kept and reported in the order of their ids, and only as many as are asked for
    router_url: str | None = None
    lora_path: str | None = None  # name of the adapter that requests ask for, where engines merge none
    samples_per_engine: int | None = None  # generate calls at a time for each engine; None: their number stays
    max_staleness: int = 0  # ages that the histogram of a rollout tells apart


@dataclass
class _Ended:
    """What ended since the last report."""

    accepted: list[AcceptedGroup] = field(default_factory=list)
    dropped: list[tuple[int, str]] = field(default_factory=list)
    sampled_tokens: int = 0
    failures: dict[str, int] = field(default_factory=dict)


class Rollout(Role):
    """Owns the data set, the group generator, the engines and the trace.

    loop      consumes        produces            waits for             freed by
    prepare   group orders    running groups      the processor pool    admit
    collect   ended groups    trace, reports      any group's end       the generator (in order: a report)
    release   bound groups    bus rows, results   nothing               the scheduler's bind
    """

    name = "rollout"

    def __init__(
        self,
        *,
        dataset: PromptDataset,
        prepare: Prepare,
        generator: GroupGenerator,
        engines: EngineFleet,
        bus: Bus,
        trace: TraceWriter,
        journal: Journal,
        clock: Clock,
        settings: RolloutSettings,
        sample_filter: SampleFilter | None = None,
        post_process: PostProcess | None = None,
        details: DetailsWriter | None = None,
        evaluate: Evaluate | None = None,
        engine_requests: EngineRequests | None = None,
        close: Callable[[], Coroutine[Any, Any, None]] | None = None,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(executor)
        self._dataset, self._prepare, self._generator, self._engines = dataset, prepare, generator, engines
        self._bus, self._trace, self._journal, self._clock, self._settings = bus, trace, journal, clock, settings
        self._sample_filter, self._post_process, self._details = sample_filter, post_process, details
        self._evaluate, self._close = evaluate, close
        self._requests = engine_requests or EngineRequests(engines.names, refused="this run's engines are fixed")
        self._holds: set[str] = set()  # why generation is paused
        self._update: asyncio.Task[None] | None = None  # ends a weight update that nobody ends
        self._overlong_in_a_row = 0  # prompts left out since the last one that fitted
        self._parts: list[ReadyGroup] = []  # released groups of the rollout that is not whole yet
        self._released: dict[str, tuple[int, ...]] = {}  # partition -> groups, for the details
        self._preparing: dict[int, asyncio.Task[None]] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self._inside: set[int] = set()  # admitted and not yet reported as ended
        self._held: dict[int, FinishedGroup] = {}  # ended, kept back until all smaller ids have ended
        self._ready: dict[int, ReadyGroup] = {}
        self._ended = _Ended()
        self._discarded_tokens = 0  # of the generator, as far as reported
        self._reports = 0
        self._stop_told = False
        self._changed = asyncio.Condition()
        self._unflushed = asyncio.Event()  # the journal holds lines that a reader does not see yet
        self._error: BaseException | None = None
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._trace.roll("0")
        self._loops = [
            asyncio.create_task(self._collect(), name="rollout.collect"),
            asyncio.create_task(self._flush_journal(), name="rollout.flush"),
        ]

    async def set_step(self, step: int) -> None:
        """A resumed run goes on at rollout `step`."""
        await super().set_step(step)
        await self._blocking(self._trace.roll, str(step))

    async def dataset(self) -> tuple[int, str]:
        return len(self._dataset), self._dataset.digest

    # ------------------------------------------------------------------ groups in

    async def admit(self, orders: tuple[GroupOrder, ...]) -> None:
        """Start groups; returns at once."""
        for order in orders:
            if order.group in self._inside:
                raise InternalError(f"group {order.group} is admitted twice")
        reading = asyncio.create_task(
            self._read_ahead([order.row for order in orders])
        )  # before the first row is asked
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        for order in orders:
            self._inside.add(order.group)
            self._preparing[order.group] = asyncio.create_task(self._start_group(order))

    async def _read_ahead(self, rows: list[int]) -> None:
        """Let a streaming data set read the rows in its own threads, while they are prepared one after the other."""
        try:
            await self._blocking(self._dataset.prefetch, rows)
        except Exception as error:  # told by `report`
            await self._fail(error)

    async def _start_group(self, order: GroupOrder) -> None:
        try:
            row = await self._blocking(self._dataset.row, order.row)  # a streaming data set reads it now
            prepared = await self._prepare(row)
            self._overlong_in_a_row = 0
            prompt = prompt_sample(prepared, group=order.group, epoch=order.epoch, row=order.row)
            prompt.attempt = order.attempt
            self._generator.admit([AdmittedGroup(order.group, prompt, self._settings.n_samples_per_prompt)])
        except OverlongPrompt as error:
            await self._leave_out(order.group, error)
        except Exception as error:  # told by `report`: a row that cannot be prepared ends the run with its place
            await self._fail(error)
        finally:
            self._preparing.pop(order.group, None)

    async def _leave_out(self, group: int, error: OverlongPrompt) -> None:
        """End a group whose prompt is too long; a data set without a single one that fits ends the run."""
        self._overlong_in_a_row += 1
        if not self._settings.drop_overlong:
            await self._fail(error)
        elif self._overlong_in_a_row >= len(self._dataset):
            await self._fail(
                DataError(f"no prompt fits --rollout-max-prompt-len {error.limit}; the last was: {error}")
            )
        elif group in self._inside:
            logger.info("prompt left out group=%d: %s", group, error)
            await self._ends(FinishedGroup(group, [], False, "overlong_prompt", 0, 0, {}, {}))

    # ------------------------------------------------------------------ groups out

    async def _collect(self) -> None:
        try:
            while True:
                await self._ends(await self._generator.next_finished())
        except Exception as error:  # told by `report`
            await self._fail(error)

    async def _ends(self, finished: FinishedGroup) -> None:
        if finished.group not in self._inside:
            return
        if not self._settings.in_order:
            await self._end_group(finished)
            return
        async with self._changed:
            self._held[finished.group] = finished
            self._changed.notify_all()

    def _next_held(self) -> FinishedGroup | None:
        """The group whose turn it is, once it has ended."""
        return self._held.get(min(self._inside, default=-1))

    async def _end_group(self, finished: FinishedGroup) -> None:
        number = finished.group
        ready = await self._blocking(self._keep, finished) if finished.accepted else None
        self._unflushed.set()
        ended = self._ended  # after the await: a report may have taken the old one meanwhile
        ended.sampled_tokens += finished.sampled_tokens
        for reason, count in finished.failures.items():
            ended.failures[reason] = ended.failures.get(reason, 0) + count
        if number not in self._inside:  # abandoned meanwhile: its end was decided elsewhere
            return
        if ready is not None:
            self._ready[number] = ready
            ended.accepted.append(ready.accepted)
        else:
            ended.dropped.append((number, finished.reason or "unknown"))
        self._inside.discard(number)
        async with self._changed:
            self._changed.notify_all()

    def _keep(self, finished: FinishedGroup) -> ReadyGroup:
        """User functions, then the trace, then the journal: what they decide is part of the record."""
        samples = finished.samples
        if self._sample_filter is not None:
            self._sample_filter([samples])
        rewards = raw = [s.get_reward(self._settings.reward_key) for s in samples]
        if self._post_process is not None:
            raw, rewards = self._post_process(samples)
        media, places = shared_media([sample.multimodal_train_inputs or () for sample in samples])
        block = Block(finished.group, group_columns(samples, rewards, raw))
        rows = [sample_row(sample) for sample in samples]
        return self._write(block, media, places, rows, finished.seconds)

    def _write(
        self,
        block: Block,
        media: tuple[MediaFeatures, ...],
        places: tuple[tuple[int, ...], ...],
        rows: list[dict[str, Any]],
        seconds: Mapping[str, float],
    ) -> ReadyGroup:
        notes = {"seconds": dict(seconds), "media": [item.sha256 for item in media], "rows": rows}
        if places:
            notes["media_places"] = places
        entry = self._trace.write(block, notes)
        self._journal.append(ev.Completed(block.uid, seconds=sum(seconds.values()), **asdict(entry)))
        self._journal.append(ev.Rewarded(block.uid, tuple(block.columns["raw_reward"].tolist())))
        return ReadyGroup(block, entry, media, places, rows, seconds)

    async def sync(self, files: tuple[str, ...]) -> int:
        """See `RolloutHandle`."""
        await self._blocking(sync_files, self._trace.folder, files)
        await self._blocking(self._journal.flush, True)
        return self._journal.next_seq

    async def restore(self, groups: tuple[StoredGroup, ...], folder: str) -> tuple[AcceptedGroup, ...]:
        """See `RolloutHandle`. What lies in another run's trace is written to this run's own as well."""
        notes = await self._blocking(read_notes, Path(folder), [group.accepted.entry for group in groups])
        restored = []
        for group in groups:
            number = group.order.group
            if number in self._inside or number in self._ready:
                raise InternalError(f"group {number} is restored and admitted at the same time")
            try:
                ready = await self._read_back(group, Path(folder), notes)
            except (OSError, DataError) as error:  # the caller generates it again
                logger.warning("a finished group cannot be read back group=%d: %s", number, error)
                continue
            self._ready[number] = ready
            restored.append(ready.accepted)
        self._unflushed.set()
        return tuple(restored)

    async def _read_back(self, group: StoredGroup, folder: Path, all_notes: Mapping[str, Any]) -> ReadyGroup:
        entry = group.accepted.entry
        block = await self._blocking(read_block, folder, entry)
        if block.uid != group.order.group:
            raise DataError(
                f"the block is of group {block.uid}, not {group.order.group}", where=f"{folder / entry.file}"
            )
        notes = all_notes.get(entry.digest)
        if notes is None:
            raise DataError(f"the trace has no notes on group {block.uid}", where=f"{folder / entry.file}")
        media: tuple[MediaFeatures, ...] = ()
        if "media_places" in notes:
            raise DataError(f"samples of group {block.uid} hold media of their own, which the trace does not keep")
        if notes["media"]:  # features are never stored: they are made from the row again
            row = await self._blocking(self._dataset.row, group.order.row)
            media = tuple((await self._prepare(row)).features)
            if [item.sha256 for item in media] != notes["media"]:
                raise DataError(f"the media of group {block.uid} have changed since it was sampled", where=row.where)
        if folder.resolve() == self._trace.folder.resolve():
            return ReadyGroup(block, entry, media, (), notes["rows"], notes["seconds"])
        return await self._blocking(self._write, block, media, (), notes["rows"], notes["seconds"])

    async def report(self, need: int, patience_s: float) -> RolloutReport:
        """See `RolloutHandle`. Raises the error of whatever failed inside."""

        def due() -> bool:
            accepted, dropped = len(self._ended.accepted), len(self._ended.dropped)
            return bool(
                self._error is not None
                or accepted >= need
                or (self.stop_requested and not self._stop_told)
                or (self._settings.in_order and dropped)  # its successor starts when the drop is decided
                or (
                    accepted + dropped and accepted + len(self._inside) < need
                )  # what runs cannot give enough any more
            )

        patient = True
        while patient and not due():
            turn = self._next_held()
            if turn is not None:
                await self._end_held(turn)
            else:
                patient = await self._wait_for(lambda: due() or self._next_held() is not None, patience_s)
        if self._error is not None:
            raise self._error
        ended, self._ended = self._ended, _Ended()
        discarded, self._discarded_tokens = self._discarded_tokens, self._generator.discarded_tokens
        sampled = ended.sampled_tokens + self._discarded_tokens - discarded
        self._stop_told = self.stop_requested
        self._reports += 1
        return RolloutReport(
            tuple(ended.accepted),
            tuple(ended.dropped),
            sampled,
            ended.failures,
            number=self._reports,
            stop_requested=self.stop_requested,
        )

    async def _wait_for(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Whether it came to hold within `patience_s`."""
        async with self._changed:
            try:
                async with asyncio.timeout(patience_s):
                    await self._changed.wait_for(condition)
            except TimeoutError:  # the caller of `report` gets what there is and asks again
                return False
        return True

    async def _end_held(self, finished: FinishedGroup) -> None:
        try:
            await self._end_group(finished)
        except Exception as error:  # told by `report`, as what fails in `_collect`
            await self._fail(error)
        self._held.pop(finished.group, None)

    async def stop_service(self) -> None:
        await super().stop_service()
        async with self._changed:
            self._changed.notify_all()

    async def abandon(self, groups: tuple[int, ...]) -> None:
        for number in groups:
            self._inside.discard(number)
            held = self._held.pop(number, None)
            if held is not None:
                self._ended.sampled_tokens += held.sampled_tokens
            self._ready.pop(number, None)
            task = self._preparing.pop(number, None)
            if task is not None:
                task.cancel()
        self._generator.discard(groups)

    async def release(self, rollout_id: int, groups: tuple[int, ...], last: bool = True) -> ReleaseReport:
        """Put bound groups on the bus; with the last ones, write the results of the rollout."""
        ready = [self._ready.pop(number) for number in sorted(groups)]
        partition = partition_of(rollout_id)
        await pause_at("put")
        with_media = [Block(r.block.uid, media_columns(r.media, r.places)) for r in ready if r.media]
        if with_media:
            await self._bus.put(partition, "media", with_media)
        await self._bus.put(partition, "rollout", [r.block for r in ready])
        self._parts += ready
        if last:
            whole, self._parts = sorted(self._parts, key=lambda r: r.block.uid), []
            await self._write_rollout(rollout_id, whole)
            self.step = rollout_id + 1
        sums, maxima = release_metrics(
            rollout_id,
            [r.block for r in ready],
            [r.seconds for r in ready],
            [row for r in ready for row in r.rows],
            max_staleness=self._settings.max_staleness,
        )
        released = tuple(
            ReleasedGroup(
                group=r.block.uid,
                lengths=tuple(np.diff(r.block.columns["token_offsets"]).tolist()),
                digest=r.block.digest,
                has_media=bool(r.media),
            )
            for r in ready
        )
        return ReleaseReport(released, sums, maxima, last)

    async def _write_rollout(self, rollout_id: int, ready: Sequence[ReadyGroup]) -> None:
        await self._blocking(self._trace.roll, str(rollout_id + 1))  # groups are kept there at the same time
        if self._details is not None:
            self._released[partition_of(rollout_id)] = tuple(r.block.uid for r in ready)
            media = [Block(r.block.uid, media_columns(r.media, r.places)) for r in ready if r.media]
            tables = {"rollout": [r.block for r in ready], "media": media}
            await self._blocking(self._details.write, "rollout_data", rollout_id, tables)
        if self._settings.result_dir is not None:
            path = result_path(self._settings.result_dir, "train", rollout_id)
            rows = [{**row, "rollout_id": rollout_id} for r in ready for row in r.rows]
            await self._blocking(write_results, path, rows)

    async def drop(self, partition: str) -> None:
        """Forget a partition whose training is done."""
        released = self._released.pop(partition, None)
        if self._details is not None and released is not None:
            await self._dump_training(self._details, partition, released)
        await self._bus.drop(partition)

    async def _dump_training(self, details: DetailsWriter, partition: str, groups: tuple[int, ...]) -> None:
        names = ("rollout", *details.tables)
        found = await self._bus.get(partition, names, groups, deadline_s=DUMP_DEADLINE_S)
        tables = {name: list(blocks.values()) for name, blocks in found.items()}
        await self._blocking(details.write, "train_data", rollout_of(partition), tables)

    # ------------------------------------------------------------------ weights, evaluation, life

    async def install(self, manifest: WeightManifest) -> tuple[EngineStatus, ...]:
        if not self._settings.interrupt_for_weights or self._holds:
            return await self._engines.install(manifest)
        self._hold("weight update")
        try:
            await self._generator.interrupt()
            return await self._engines.install(manifest)
        finally:
            self._free("weight update")

    async def offload(self) -> None:
        self._hold("engines sleep")
        if self._settings.interrupt_for_weights:
            await self._generator.finish_protected(self._settings.generate_timeout_s)
        await self._engines.offload()

    async def onload(self, tags: tuple[str, ...]) -> None:
        await self._engines.onload(tags)
        if "kv_cache" in tags:
            self._free("engines sleep")

    def _hold(self, reason: str) -> None:
        """Hold back new calls and requests; generation goes on once every reason is gone."""
        if not self._holds:
            self._generator.pause()
        self._holds.add(reason)

    def _free(self, reason: str) -> None:
        if reason in self._holds:
            self._holds.remove(reason)
            if not self._holds:
                self._generator.resume()

    async def can_update_weights(self) -> int:
        """1 once a rollout is whole: generation is then held until `end_weight_update`, or for ten minutes at most.

        The run's own installs hold engines by themselves; this is for who changes weights from outside.
        """
        if self._requests.running("scale_in"):
            raise Refused(503, "engines are leaving: ask again once the scale_in has ended")
        if not self.step:
            return 0
        await self.end_weight_update()
        self._hold("weight update")
        self._update = asyncio.create_task(self._end_forgotten_update(), name="rollout.weight-update")
        return 1

    async def end_weight_update(self) -> None:
        """Let generation go on. A no-op when it is not held for an update."""
        if self._update is not None:
            self._update.cancel()
            self._update = None
        self._free("weight update")

    async def _end_forgotten_update(self) -> None:
        await self._clock.sleep(UPDATE_HOLD_S)
        logger.warning("generation goes on: no end_update_weight within %g s", UPDATE_HOLD_S)
        self._update = None
        self._free("weight update")

    # ------------------------------------------------------------------ engines that come and go

    async def join_engine(self, name: str, url: str, manifest: WeightManifest) -> EngineStatus:
        await self._engines.add(name, url)
        (status,) = await self._engines.install_on((name,), manifest)
        return status

    async def serve_engine(self, name: str) -> None:
        await self._engines.serve(name)
        self._resize()
        self._free("no engine")

    async def retire_engine(self, name: str) -> None:
        await self._engines.retire(name)
        if not self._engines.names:
            self._hold("no engine")
        self._resize()

    def _resize(self) -> None:
        """As many generate calls at a time as the engines take that get requests."""
        count, each = len(self._engines.serving), self._settings.samples_per_engine
        if count and each is not None:
            self._generator.resize(count * each)

    async def drain_engine(self, name: str, timeout_s: float) -> bool:
        return await self._engines.drain(name, timeout_s)

    async def forget_engine(self, name: str) -> None:
        await self.retire_engine(name)
        await self._engines.forget(name)

    async def next_engine_order(self, patience_s: float) -> EngineOrder | None:
        return await self._requests.next(patience_s)

    async def engine_order_update(self, request_id: str, changes: Mapping[str, Any]) -> None:
        self._requests.update(request_id, changes)

    async def serving(self) -> dict[str, Any]:
        """Where requests of others may be sent: {"router": url or None, "engines": urls}, and with which adapter."""
        settings = self._settings
        return {"router": settings.router_url, "engines": self._engines.serving, "lora_path": settings.lora_path}

    async def scale_out(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._requests.scale_out(body, self._engines.names)

    async def scale_in(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._requests.scale_in(body, self._engines.urls)

    async def scale_rollout(self, wanted: int, room: tuple[int, str] | None = None) -> dict[str, Any]:
        """Have `wanted` engines in all; see `EngineRequests.scale_to`."""
        return self._requests.scale_to(wanted, self._engines.urls, room)

    async def scale_request(self, direction: str, request_id: str) -> dict[str, Any]:
        return self._requests.one(direction, request_id)

    async def scale_requests(
        self, direction: str, model_name: str | None = None, status: str | None = None
    ) -> list[dict[str, Any]]:
        return self._requests.all(direction, model_name, status)

    async def recover_rollout_engines(self) -> dict[str, str]:
        self._requests.recover()
        return {"status": "ok"}

    async def evaluate(self, rollout_id: int, version: int) -> EvalReport:
        if self._evaluate is None:
            raise InternalError("evaluate was called without an evaluation set")
        started = self._clock.now()
        metrics, samples = await self._evaluate(rollout_id)
        if self._settings.result_dir is not None:
            path = result_path(self._settings.result_dir, "eval", rollout_id)
            await self._blocking(write_results, path, [sample_row(s, rollout_id=rollout_id) for s in samples])
        return EvalReport(version, metrics, self._clock.now() - started)

    async def engines(self) -> dict[str, object]:
        return await self._engines.status()

    async def status(self) -> dict[str, Any]:
        return {
            **await super().status(),
            "running_groups": len(self._inside),
            "ready_groups": len(self._ready),
            "paused": sorted(self._holds),
            "engines": await self._engines.status(),
        }

    async def stop(self) -> None:
        for task in [*self._loops, *self._preparing.values(), *self._reading]:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.end_weight_update()
        self._loops = []
        await self._generator.stop()
        if self._close is not None:
            close, self._close = self._close, None
            await close()
        await self._blocking(self._trace.close)
        await self._blocking(self._journal.close)
        self._dataset.close()

    async def _flush_journal(self) -> None:
        while True:
            await self._unflushed.wait()
            self._unflushed.clear()
            await self._clock.sleep(FLUSH_INTERVAL_S)
            await self._blocking(self._journal.flush)

    async def _fail(self, error: BaseException) -> None:
        if not isinstance(error, RelaxError):
            logger.exception("rollout failed", exc_info=error)
        async with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()
