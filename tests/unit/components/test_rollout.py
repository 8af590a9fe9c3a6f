# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The rollout role around a generator whose groups end when the test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax.components.engines import EngineFleet
from relax.components.messages import PRODUCERS, GroupOrder, StoredGroup
from relax.components.rollout import Rollout, RolloutSettings
from relax.data.chat import PreparedPrompt
from relax.data.columns import media_from_columns, media_places
from relax.data.datasets import RawRow
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.distributed.trace import TraceEntry, TraceWriter, read_block
from relax.engine.rollout.groups import AdmittedGroup, FinishedGroup
from relax.engine.rollout.results import read_results
from relax.schedule import events as ev
from relax.schedule.clock import RealClock, VirtualClock, run_virtual
from relax.schedule.journal import MemoryJournal
from relax.utils.errors import DataError, InternalError
from relax.utils.types import MediaFeatures, Sample

FEATURES = MediaFeatures("image", "cd" * 32, {"pixel_values": np.ones((2, 3), np.float32)}, 2)


class Generator:
    """What the role needs of a `GroupGenerator`; the test ends groups by `end`."""

    def __init__(self) -> None:
        self.admitted: list[AdmittedGroup] = []
        self.discarded: list[int] = []
        self.discarded_tokens = 0
        self._finished: asyncio.Queue[FinishedGroup] = asyncio.Queue()

    def admit(self, groups: list[AdmittedGroup]) -> None:
        self.admitted += groups

    async def next_finished(self) -> FinishedGroup:
        return await self._finished.get()

    def discard(self, groups: tuple[int, ...]) -> None:
        self.discarded += groups

    def end(
        self,
        group: int,
        *,
        reason: str | None = None,
        versions: tuple[int, ...] = (3, 4),
        own: tuple[dict[str, Any], ...] = ({}, {}),
        **extra: Any,
    ) -> None:
        """`own` are fields of each of the two samples, `extra` of both."""
        samples = [
            Sample(
                group_index=group,
                index=index,
                tokens=[7, 8, *range(len(versions))],
                response_length=len(versions),
                loss_mask=[int(v >= 0) for v in versions],
                rollout_log_probs=[-0.5] * len(versions),
                weight_versions=list(versions),
                status=Sample.Status.COMPLETED,
                reward=float(index),
                **extra,
                **own[index],
            )
            for index in range(2)
        ]
        seconds = {"generate": 2.0, "score": 1.0}
        failures = {"timeout": 1} if reason else {}
        self._finished.put_nowait(FinishedGroup(group, samples, reason is None, reason, 10, 2, failures, seconds))

    async def stop(self) -> None: ...


class Rows:
    digest = "d"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return 9

    def row(self, index: int) -> RawRow:
        self.calls.append(("row", index))
        return RawRow({"number": index}, f"rows:{index}", Path("."))

    def prefetch(self, indices: Any) -> None:
        self.calls.append(("prefetch", tuple(indices), threading.current_thread() is threading.main_thread()))

    def close(self) -> None: ...


async def prepare(row: RawRow) -> PreparedPrompt:
    number = row.values["number"]
    if number == 8:
        raise DataError("the row is broken", where=row.where)
    features = [FEATURES] if number == 7 else []
    return PreparedPrompt("text", None, [number, 1], [number, 1, 1], [], features, "label", {}, None)


class WatchedTrace(TraceWriter):
    """Writes wait for `go`; another use of the file meanwhile is an error, as it would be for a real one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go, self.writing = threading.Event(), threading.Event()
        self.go.set()

    def write(self, block: Block, notes: Mapping[str, Any] | None = None) -> TraceEntry:
        self.writing.set()
        assert self.go.wait(10)
        entry = super().write(block, notes)
        self.writing.clear()
        return entry

    def roll(self, name: str) -> None:
        assert not self.writing.is_set(), "the file was changed under a write"
        super().roll(name)


def make_role(
    folder: Path,
    generator: Generator,
    *,
    executor: Executor | None = None,
    clock: Any = None,
    trace: TraceWriter | None = None,
    dataset: Rows | None = None,
    in_order: bool = False,
) -> Rollout:
    clock = clock or RealClock()
    return Rollout(
        dataset=dataset or Rows(),
        prepare=prepare,
        generator=generator,  # type: ignore[arg-type]
        engines=EngineFleet({}, clock=clock),
        bus=LocalBus(PRODUCERS),
        trace=trace or TraceWriter(folder / "trace"),
        journal=MemoryJournal(),
        clock=clock,
        settings=RolloutSettings(2, result_dir=folder, in_order=in_order),
        executor=executor,
    )


def orders(*groups: int) -> tuple[GroupOrder, ...]:
    return tuple(GroupOrder(group, 0, group) for group in groups)


async def test_the_rows_of_admitted_groups_are_read_ahead_off_the_event_loop(tmp_path):
    rows, generator = Rows(), Generator()
    role = make_role(tmp_path, generator, executor=ThreadPoolExecutor(1), dataset=rows)
    await role.admit(tuple(GroupOrder(group, 0, row) for group, row in ((10, 4), (11, 2))))
    await until(lambda: len(generator.admitted) == 2)
    assert rows.calls == [("prefetch", (4, 2), False), ("row", 4), ("row", 2)]
    await role.stop()


class HeldExecutor(Executor):
    """Runs work in a thread, but only once `go` is set."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        def work() -> Any:
            self.asked.set()
            assert self.go.wait(10)
            return function(*args, **kwargs)

        return self._pool.submit(work)


async def until(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition never held")


async def test_a_report_during_the_keeping_of_a_group_loses_nothing(tmp_path: Path):
    held, generator = HeldExecutor(), Generator()
    role = make_role(tmp_path, generator, executor=held)
    await role.start()
    await role.admit(orders(0, 1))
    generator.end(0)
    await until(held.asked.is_set)  # group 0 is on its way into the trace
    assert (await role.report(1, 0.01)).accepted == ()  # the caller's patience ends meanwhile
    held.go.set()
    report = await role.report(1, 10.0)
    assert [(a.group, a.oldest, a.newest) for a in report.accepted] == [(0, 3, 4)]
    assert report.sampled_tokens == 10
    await role.stop()


async def test_a_release_during_the_keeping_of_a_group_waits_for_its_bytes(tmp_path: Path):
    trace, generator = WatchedTrace(tmp_path / "trace"), Generator()
    role = make_role(tmp_path, generator, executor=ThreadPoolExecutor(1), trace=trace)
    await role.start()
    await role.admit(orders(0, 1))
    generator.end(0)
    await role.report(1, 10.0)
    trace.go.clear()
    generator.end(1)
    await until(trace.writing.is_set)  # group 1 is being written while group 0 is released
    release = asyncio.create_task(role.release(0, (0,)))
    await asyncio.sleep(0.05)
    trace.go.set()
    assert [g.group for g in (await release).groups] == [0]
    assert [a.group for a in (await role.report(1, 10.0)).accepted] == [1]
    await role.stop()


async def test_a_group_abandoned_while_it_is_kept_leaves_nothing_behind(tmp_path: Path):
    held, generator = HeldExecutor(), Generator()
    role = make_role(tmp_path, generator, executor=held)
    await role.start()
    await role.admit(orders(0, 1))
    generator.end(0)
    await until(held.asked.is_set)
    await role.abandon((0,))
    held.go.set()
    generator.end(1)
    report = await role.report(1, 10.0)
    assert [a.group for a in report.accepted] == [1]
    assert report.sampled_tokens == 20  # what it cost is counted all the same
    assert (await role.status())["ready_groups"] == 1
    await role.stop()


async def test_T18_a_prompt_makes_no_group_older_and_has_no_versions(tmp_path: Path):
    """Only response tokens have a version, so a long old prompt (-1 elsewhere) cannot read as stale."""
    generator = Generator()
    role = make_role(tmp_path, generator)
    await role.start()
    await role.admit(orders(4))
    generator.end(4, versions=(7, 7, 7, 7))
    (accepted,) = (await role.report(1, 5.0)).accepted
    assert (accepted.oldest, accepted.newest) == (7, 7)
    (released,) = (await role.release(8, (4,))).groups
    assert released.lengths
    columns = (await role._bus.get("train_8", ("rollout",), (4,), deadline_s=5.0))["rollout"][4].columns
    assert columns["prompt_len"].sum() > 0
    sampled = len(columns["tokens"]) - columns["prompt_len"].sum()
    assert len(columns["weight_version"]) == columns["response_len"].sum() == sampled
    assert columns["weight_version"].min() == 7
    await role.stop()


async def test_observation_tokens_have_no_age_and_drops_carry_their_reason(tmp_path: Path):
    """T18 for the tokens between turns."""
    generator = Generator()
    role = make_role(tmp_path, generator)
    await role.start()
    await role.admit(orders(4, 5))
    generator.end(4, versions=(-1, 6, -1, 5))
    generator.end(5, reason="filter")
    report = await role.report(2, 5.0)  # one can still come at most, so it does not wait for two
    assert [(a.group, a.oldest, a.newest) for a in report.accepted] == [(4, 5, 6)]
    assert report.dropped == ((5, "filter"),)
    assert report.failures == {"timeout": 1}
    await role.stop()


async def test_parts_are_on_the_bus_at_once_and_the_results_of_a_rollout_are_one_file(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator)
    await role.start()
    await role.admit(orders(0, 1, 2))
    for number in (2, 0, 1):
        generator.end(number)
    await role.report(3, 5.0)
    result = tmp_path / "rollout_result" / "train" / "0.jsonl"
    first = await role.release(0, (2,), False)
    assert [g.group for g in first.groups] == [2]
    assert not first.last
    assert sorted((await role._bus.get("train_0", ("rollout",), [2], deadline_s=0.1))["rollout"]) == [2]
    assert not result.exists()
    assert role.step == 0
    last = await role.release(0, (0, 1), True)
    assert [g.group for g in last.groups] == [0, 1]
    assert last.last
    assert [row["group"] for row in read_results(result)] == [0, 0, 1, 1, 2, 2]
    assert role.step == 1
    await role.stop()


async def test_trace_comes_before_journal_and_holds_what_the_bus_gets(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator)
    await role.start()
    await role.admit(orders(0))
    generator.end(0, multimodal_train_inputs=[FEATURES])
    await role.report(1, 5.0)
    completed, rewarded = role._journal.events
    assert rewarded == ev.Rewarded(0, (0.0, 1.0))
    entry = TraceEntry(completed.file, completed.offset, completed.length, completed.digest)
    block = read_block(tmp_path / "trace", entry)
    released = await role.release(0, (0,))
    rows = await role._bus.get("train_0", ("rollout", "media"), [0], deadline_s=0.1)
    assert rows["rollout"][0].digest == block.digest == released.groups[0].digest
    assert released.groups[0].lengths == (4, 4)
    assert released.groups[0].has_media
    assert rows["media"][0].columns["0:pixel_values"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert [row["reward"] for row in read_results(tmp_path / "rollout_result" / "train" / "0.jsonl")] == [0.0, 1.0]
    # ages 0 - 3 and 0 - 4 of both samples; the numbers of a rollout come as sums and counts
    assert released.metrics["rollout/staleness_steps/mean"] == (-14.0, 4.0)
    assert released.metrics["rollout/reward/mean"] == (1.0, 2.0)
    assert role.step == 1
    await role.stop()


async def test_a_group_that_is_read_back_is_released_as_the_finished_one_would_have_been(tmp_path: Path):
    generator, first, second = Generator(), tmp_path / "first", tmp_path / "second"
    role = make_role(first, generator)
    await role.start()
    await role.admit((GroupOrder(5, 0, 7),))
    generator.end(5, versions=(2, 3), multimodal_train_inputs=[FEATURES], reward_parts={"format": 0.25})
    (accepted,) = (await role.report(1, 5.0)).accepted
    stored = StoredGroup(GroupOrder(5, 0, 7), 2, accepted)
    again = make_role(second, Generator())
    await again.start()
    (restored,) = await again.restore((stored,), str(first / "trace"))
    assert (restored.group, restored.oldest, restored.newest) == (5, 2, 3)
    assert restored.entry.digest == accepted.entry.digest
    # bus rows (media from the row again), results and metrics are those of the role that generated it
    assert await again.release(4, (5,)) == await role.release(4, (5,))
    tables = [await r._bus.get("train_4", ("rollout", "media"), [5], deadline_s=0.1) for r in (role, again)]
    assert [t["rollout"][5].digest for t in tables] == [accepted.entry.digest] * 2
    assert tables[0]["media"][5].digest == tables[1]["media"][5].digest
    results = [read_results(folder / "rollout_result/train/4.jsonl") for folder in (first, second)]
    assert results[0] == results[1]
    assert [row["reward"] for row in results[1]] == [0.0, 1.0]
    await role.stop()
    await again.stop()


async def test_media_that_later_turns_add_are_released_but_not_read_back(tmp_path: Path, caplog):
    """Their content is in no data-set row, so the group is generated again."""
    generator, zoomed = Generator(), replace(FEATURES, sha256="ef" * 32)
    role = make_role(tmp_path, generator)
    await role.start()
    await role.admit((GroupOrder(5, 0, 7),))
    own = ({"multimodal_train_inputs": [FEATURES]}, {"multimodal_train_inputs": [FEATURES, zoomed]})
    generator.end(5, own=own)
    (accepted,) = (await role.report(1, 5.0)).accepted
    await role.release(0, (5,))
    columns = (await role._bus.get("train_0", ("media",), [5], deadline_s=0.1))["media"][5].columns
    assert [item.sha256[:2] for item in media_from_columns(columns)] == ["cd", "ef"]
    assert media_places(columns) == [[0], [0, 1]]
    await role.stop()
    again = make_role(tmp_path / "second", Generator())
    await again.start()
    assert await again.restore((StoredGroup(GroupOrder(5, 0, 7), 0, accepted),), str(tmp_path / "trace")) == ()
    assert "samples of group 5 hold media of their own" in caplog.text
    await again.stop()


async def test_a_group_without_its_files_or_with_other_media_is_not_read_back(tmp_path: Path, caplog):
    generator = Generator()
    role = make_role(tmp_path, generator)
    await role.start()
    await role.admit((GroupOrder(5, 0, 7), GroupOrder(6, 0, 1)))
    generator.end(5, multimodal_train_inputs=[replace(FEATURES, sha256="ff" * 32)])
    generator.end(6)
    accepted = (await role.report(2, 5.0)).accepted
    await role.stop()
    stored = tuple(StoredGroup(GroupOrder(a.group, 0, {5: 7, 6: 1}[a.group]), 0, a) for a in accepted)
    again = make_role(tmp_path / "second", Generator())
    await again.start()
    assert [a.group for a in await again.restore(stored, str(tmp_path / "trace"))] == [6]
    assert "rows:7: the media of group 5 have changed since it was sampled" in caplog.text
    assert await again.restore(stored[:1], str(tmp_path / "nowhere")) == ()
    await again.stop()


async def test_a_row_that_cannot_be_prepared_ends_the_run_with_its_place(tmp_path: Path):
    role = make_role(tmp_path, Generator())
    await role.start()
    await role.admit(orders(8))
    with pytest.raises(DataError, match="rows:8: the row is broken"):
        await role.report(1, 5.0)
    await role.stop()


async def test_a_group_is_admitted_once(tmp_path: Path):
    role = make_role(tmp_path, Generator())
    await role.start()
    await role.admit(orders(1))
    with pytest.raises(InternalError, match="group 1 is admitted twice"):
        await role.admit(orders(1))
    await role.stop()


async def test_tokens_of_discarded_groups_are_counted_once(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator)
    await role.start()
    generator.discarded_tokens = 25
    assert (await role.report(1, 0.01)).sampled_tokens == 25
    assert (await role.report(1, 0.01)).sampled_tokens == 0
    await role.stop()


async def test_a_resumed_role_writes_its_trace_under_the_next_rollout(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator)
    await role.start()
    await role.set_step(7)
    await role.admit((GroupOrder(3, 1, 2, attempt=1),))
    await until(lambda: generator.admitted)
    (admitted,) = generator.admitted
    assert (admitted.prompt.attempt, admitted.prompt.epoch, admitted.prompt.row) == (1, 1, 2)
    assert (admitted.prompt.tokens, admitted.prompt.rollout_tokens) == ([2, 1, 1], [2, 1])
    generator.end(3)
    await role.report(1, 5.0)
    assert role._journal.events[0].file == "7.safetensors"
    await role.stop()


def files_of(role: Rollout) -> list[int]:
    return [event.group for event in role._journal.events if isinstance(event, ev.Completed)]


async def test_in_order_groups_are_kept_and_reported_by_id_whatever_ends_first(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator, in_order=True)
    await role.start()
    await role.admit(orders(0, 1, 2, 3))
    for group in (3, 1, 2):
        generator.end(group)
    report = await role.report(2, 0.05)
    assert (report.accepted, report.dropped, files_of(role)) == ((), (), [])  # 0 has not ended
    generator.end(0)
    assert [a.group for a in (await role.report(2, 5.0)).accepted] == [0, 1]
    assert files_of(role) == [0, 1]  # no more than were asked for: what comes after them may become surplus
    assert [a.group for a in (await role.report(2, 5.0)).accepted] == [2, 3]
    await role.stop()


async def test_in_order_a_drop_is_reported_at_once_so_that_its_successor_can_start(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator, in_order=True)
    await role.start()
    await role.admit(orders(0, 1, 2))
    generator.end(0)
    generator.end(1, reason="filter")
    generator.end(2)
    report = await role.report(3, 5.0)
    assert ([a.group for a in report.accepted], report.dropped) == ([0], ((1, "filter"),))
    assert [a.group for a in (await role.report(1, 5.0)).accepted] == [2]
    await role.stop()


async def test_in_order_an_abandoned_group_holds_nobody_back_and_its_tokens_are_counted(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator, in_order=True)
    await role.start()
    await role.admit(orders(0, 1, 2))
    generator.end(1)
    generator.end(2)
    await until(lambda: len(role._held) == 2)
    await role.abandon((0, 1))
    report = await role.report(1, 5.0)
    assert [a.group for a in report.accepted] == [2]
    assert report.sampled_tokens == 20
    assert files_of(role) == [2]
    await role.stop()


async def test_in_order_an_error_while_a_group_is_kept_reaches_the_report(tmp_path: Path):
    generator = Generator()
    role = make_role(tmp_path, generator, in_order=True)
    await role.start()
    await role.admit(orders(0))
    generator.end(0)
    role._trace.close()
    with pytest.raises(ValueError, match="roll"):
        await role.report(1, 5.0)
    await role.stop()


def test_an_idle_role_sets_no_timer(tmp_path: Path):
    async def main() -> float:
        role = make_role(tmp_path, Generator(), clock=VirtualClock())
        await role.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000.0):
                await role._changed.acquire()
                await role._changed.wait()
        await role.stop()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 1000.0


# ---------------------------------------------------------------------- pauses


class PausedGenerator(Generator):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


def test_a_weight_update_from_outside_holds_generation_until_its_end_or_ten_minutes(tmp_path):
    async def main() -> None:
        generator = PausedGenerator()
        role = make_role(tmp_path, generator, clock=VirtualClock())
        assert await role.can_update_weights() == 0  # no rollout is whole
        await role.set_step(1)
        assert await role.can_update_weights() == 1
        assert (await role.status())["paused"] == ["weight update"]
        await role.offload()
        await role.end_weight_update()
        assert generator.calls == ["pause"]  # the engines still sleep
        await role.onload(("weights",))
        await role.onload(("kv_cache",))
        assert generator.calls == ["pause", "resume"]
        await role.end_weight_update()
        assert await role.can_update_weights() == 1
        await asyncio.sleep(599.0)
        assert generator.calls[2:] == ["pause"]
        await asyncio.sleep(2.0)
        assert generator.calls[2:] == ["pause", "resume"]
        await role.stop()

    run_virtual(main())
