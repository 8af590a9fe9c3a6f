# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A run that is cut off and resumed: nothing is lost, nothing is trained twice, the same numbers go on."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation.checker import of_kind, trace_blocks, violations
from benchmarks.simulation.plan import Plan
from benchmarks.simulation.twins import NUM_ROWS, MemoryDataset
from benchmarks.simulation.world import Crash, World
from relax.components.messages import TrainReport, TrainTask
from relax.components.trained import prompt_hash, read_trained
from relax.core.checkpoint import RunState, latest_checkpoint
from relax.core.resume import find_resumption, resume
from relax.schedule import events as ev
from relax.schedule.clock import run_virtual
from relax.utils.errors import ConfigError
from relax.utils.rng import permutation

PLAN = Plan(seed=11, batch=2, rollouts=6, staleness=1, save_interval=2, slow_requests=0.1)


def loader(folder: Path):
    async def load(world: World) -> None:
        resumption = find_resumption(str(folder), None, world.dataset.digest)
        if resumption is not None:
            await resume(world.loop, resumption)

    return load


def crash_and_resume(plan: Plan, folder: Path, *, stop_after: int) -> tuple[World, World]:
    """The run cut off after a rollout, and a second one that goes on at the last checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    first = run_virtual(World(plan, folder, stop_after=stop_after).run())
    second = World(plan, folder, start_table=np.zeros((10, 10)))  # its own start must not matter
    run_virtual(second.run(loader(folder)))
    second.publisher.tables = {**first.publisher.tables, **second.publisher.tables}  # restored groups name old ones
    return first, second


def prompts_of(world: World) -> dict[int, tuple[int, int]]:
    admitted = of_kind(world.journal.events, ev.Admitted | ev.Restored)
    return {event.group: (event.epoch, event.row) for event in admitted}


def trained_prompts(world: World, rollout_ids: range) -> Counter[tuple[int, int]]:
    prompts = prompts_of(world)
    bound = [event for event in of_kind(world.journal.events, ev.Bound) if event.rollout_id in rollout_ids]
    return Counter(prompts[group] for event in bound for group in event.groups)


def order(count: int) -> list[tuple[int, int]]:
    """The first draws of the run, from (seed, epoch) alone."""
    epochs = -(-count // NUM_ROWS)
    rows = [(epoch, int(row)) for epoch in range(epochs) for row in permutation(PLAN.seed, epoch, NUM_ROWS)]
    return rows[:count]


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_no_prompt_is_lost_or_doubled(stop_after: int, staleness: int, tmp_path: Path):
    plan = replace(PLAN, staleness=staleness)
    first, second = crash_and_resume(plan, tmp_path, stop_after=stop_after)
    contained = {1: 2, 2: 2, 3: 4, 4: 4}[stop_after]  # rollouts in the last checkpoint, written after 1 and 3
    trained = trained_prompts(first, range(contained)) + trained_prompts(second, range(contained, 6))
    assert trained == Counter(order(12))
    assert [event.rollout_id for event in of_kind(second.journal.events, ev.Stepped)] == list(range(contained, 6))


def test_open_groups_are_admitted_first_under_their_ids_and_counters_go_on(tmp_path: Path):
    first, second = crash_and_resume(PLAN, tmp_path, stop_after=2)
    events = second.journal.events
    (resumed,) = of_kind(events, ev.Resumed)
    admitted = [event.group for event in of_kind(events, ev.Admitted | ev.Restored)]
    assert resumed.readmit
    assert admitted[: len(resumed.readmit)] == list(resumed.readmit)
    fresh = admitted[len(resumed.readmit) :]
    assert fresh == list(range(resumed.next_group, resumed.next_group + len(fresh)))
    # an id means the same prompt in both runs
    before, after = prompts_of(first), prompts_of(second)
    assert all(before[group] == after[group] for group in resumed.readmit)
    # and no trained group of the checkpoint comes again
    contained = {g for e in of_kind(first.journal.events, ev.Bound) if e.rollout_id < 2 for g in e.groups}
    assert contained.isdisjoint(admitted)
    # the second attempt has request ids of its own
    attempts = {row["attempt"] for ready in second.rollout._ready.values() for row in ready.rows}
    assert attempts <= {0, 1}


def test_finished_groups_are_read_back_and_not_generated_again(tmp_path: Path):
    first, second = crash_and_resume(PLAN, tmp_path, stop_after=2)
    restored = of_kind(second.journal.events, ev.Restored)
    assert restored
    numbers = {event.group for event in restored}
    # they were finished, and not trained, when the checkpoint was written; here they never end a second time
    assert numbers <= {event.group for event in of_kind(first.journal.events, ev.Accepted)}
    assert numbers.isdisjoint(event.group for event in of_kind(second.journal.events, ev.Completed | ev.Admitted))
    # they keep the versions of their tokens, and the trainer was given the very tokens of the trace
    before = {event.group: event for event in of_kind(first.journal.events, ev.Accepted)}
    for event in restored:
        assert (event.oldest, event.newest) == (before[event.group].oldest, before[event.group].newest)
        offsets = trace_blocks(first)[event.group][1]["token_offsets"]
        tokens = trace_blocks(first)[event.group][1]["tokens"]
        stored = Counter(tuple(tokens[a:b].tolist()) for a, b in itertools.pairwise(offsets))
        given = Counter(t for step in second.backend.trained for uid, t, _ in step if uid[0] == event.group)
        assert given == stored


def test_a_group_whose_bytes_are_damaged_is_generated_again_under_its_id(tmp_path: Path):
    first = run_virtual(World(PLAN, tmp_path, stop_after=2).run())
    _, state = latest_checkpoint(tmp_path)
    broken, *whole = (stored.accepted for stored in state.finished_groups)
    path = tmp_path / "trace" / broken.entry.file
    data = bytearray(path.read_bytes())
    data[broken.entry.offset + broken.entry.length - 1] ^= 1
    path.write_bytes(data)
    second = run_virtual(World(PLAN, tmp_path).run(loader(tmp_path)))
    assert [event.group for event in of_kind(second.journal.events, ev.Restored)] == [a.group for a in whole]
    assert broken.group in {event.group for event in of_kind(second.journal.events, ev.Completed)}
    assert trained_prompts(first, range(2)) + trained_prompts(second, range(2, 6)) == Counter(order(12))


def test_a_run_in_another_folder_takes_the_finished_groups_along(tmp_path: Path):
    first = run_virtual(World(PLAN, tmp_path / "old", stop_after=2).run())
    second = run_virtual(World(PLAN, tmp_path / "new").run(loader(tmp_path / "old")))
    restored = of_kind(second.journal.events, ev.Restored)
    assert restored
    for event in restored:  # its own trace holds them, so it can be resumed when the old folder is gone
        data = (tmp_path / "new/trace" / event.file).read_bytes()[event.offset : event.offset + event.length]
        assert hashlib.blake2b(data, digest_size=16).hexdigest() == event.digest == trace_blocks(first)[event.group][0]
    assert trained_prompts(first, range(2)) + trained_prompts(second, range(2, 6)) == Counter(order(12))


def test_weights_versions_steps_and_the_digest_chain_go_on(tmp_path: Path):
    first, second = crash_and_resume(PLAN, tmp_path, stop_after=2)
    assert [event.version for event in of_kind(second.journal.events, ev.Published)] == [2, 3, 4, 5, 6]
    assert (first.publisher.tables[2] == second.publisher.tables[2]).all()
    assert second.sink.series("train/optimizer_steps") == [3.0, 4.0, 5.0, 6.0]
    assert second.backend.num_steps == 6
    chain = of_kind(first.journal.events, ev.Stepped)[1].digest
    blocks = trace_blocks(second)
    for bound, stepped in zip(
        of_kind(second.journal.events, ev.Bound), of_kind(second.journal.events, ev.Stepped), strict=True
    ):
        text = chain + "".join(f"|{group}:{blocks[group][0]}" for group in sorted(bound.groups))
        chain = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        assert stepped.digest == chain


def test_staleness_zero_ends_with_the_weights_of_the_uninterrupted_run(tmp_path: Path):
    # on-policy samples depend on (seed, group, index) and on the weights alone
    plan = replace(PLAN, staleness=0)
    whole = run_virtual(World(plan, tmp_path / "whole").run())
    for stop_after in (1, 2, 4):
        _, second = crash_and_resume(plan, tmp_path / str(stop_after), stop_after=stop_after)
        assert (second.backend.table == whole.backend.table).all()


def test_what_over_sampling_dropped_is_drawn_again_after_a_resume_as_well(tmp_path: Path):
    plan = replace(PLAN, staleness=0, surplus=2)
    first, second = crash_and_resume(plan, tmp_path, stop_after=2)
    _, state = latest_checkpoint(tmp_path)
    used = trained_prompts(first, range(2)) + trained_prompts(second, range(2, 6))
    assert all(count == 1 for count in used.values())
    final = Counter(order(state.prompts_drawn))
    # whatever was drawn is trained, waits to be drawn again, or is open
    assert used + prompts_waiting(state) == final


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("seconds", [15.0, 31.0, 47.0, 63.0, 79.0, 95.0])
def test_a_run_that_is_stopped_anywhere_saves_what_is_finished(seconds: float, staleness: int, tmp_path: Path):
    plan = replace(PLAN, staleness=staleness, save_interval=100)

    async def stop_in_time(world: World) -> None:
        run = world.loop.run

        async def stopped() -> None:
            try:
                async with asyncio.timeout(seconds):
                    await run()
            except TimeoutError:
                await world.loop.save_at_exit()
                raise Crash from None

        world.loop.run = stopped

    first = run_virtual(World(plan, tmp_path).run(stop_in_time))
    # every rollout that the trainer has finished is in the checkpoint, also one whose report was still on its way
    contained = first.backend.num_steps
    assert len(of_kind(first.journal.events, ev.Stepped)) == contained
    found = latest_checkpoint(tmp_path)
    assert (found is None) == (contained == 0)
    if found is not None:
        assert (found[1].rollout_id + 1, found[1].optimizer_steps) == (contained, contained)
    second = World(plan, tmp_path)
    run_virtual(second.run(loader(tmp_path)))
    trained = trained_prompts(first, range(contained)) + trained_prompts(second, range(contained, 6))
    assert trained == Counter(order(12))
    # what the trainer says it was given, from the first rollout to the last; row n is the prompt [n + 1, 2, n + 1]
    _, state = latest_checkpoint(tmp_path)
    assert state.rollout_id == 5
    records = read_trained(tmp_path / "iter_0000005/model")
    rows = {prompt_hash(np.array([row + 1, 2, row + 1])): row for row in range(NUM_ROWS)}
    assert Counter(rows[int(prompt)] for prompt in records["prompt"]) == Counter(row for _, row in order(12))
    assert records["rollout"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len(set(records["group"].tolist())) == 12


def test_the_chain_of_digests_of_a_rollout_whose_report_was_lost_goes_on(tmp_path: Path):
    plan = replace(PLAN, staleness=0)
    whole = run_virtual(World(plan, tmp_path / "whole").run())
    lost = World(plan, tmp_path / "lost")

    async def lose_the_report(world: World) -> None:
        train = world.actor.train

        async def trains_and_vanishes(task: TrainTask) -> TrainReport:
            report = await train(task)
            if task.rollout_id == 2:
                await world.loop.save_at_exit()
                raise Crash
            return report

        world.actor.train = trains_and_vanishes

    run_virtual(lost.run(lose_the_report))
    _, state = latest_checkpoint(tmp_path / "lost")
    assert state.rollout_id == 2
    assert state.digest == of_kind(whole.journal.events, ev.Stepped)[2].digest


def test_a_resumed_run_keeps_every_promise_of_its_own(tmp_path: Path):
    _, second = crash_and_resume(replace(PLAN, filtered=0.2, user_failures=0.2), tmp_path, stop_after=3)
    assert of_kind(second.journal.events, ev.Restored)
    found = [text for text in violations(second, finished=False) if "chained digest" not in text]
    # rollouts are numbered from the checkpoint on
    assert [text for text in found if not text.startswith("rollouts were trained in the order [4, 5]")] == []


def test_a_crash_in_the_middle_of_a_checkpoint_keeps_the_old_one(tmp_path: Path):
    first = run_virtual(World(PLAN, tmp_path, stop_after=2).run())
    root = tmp_path
    path, state = latest_checkpoint(root)
    half = root / ".iter_0000003.partial" / "model"
    half.mkdir(parents=True)
    (half / "bigram.npz").write_bytes(b"half")
    (root / "iter_0000003").mkdir()  # renamed, and the tracker not yet
    assert latest_checkpoint(root) == (path, state)
    assert state.rollout_id == 1
    second = run_virtual(World(PLAN, tmp_path).run(loader(tmp_path)))
    assert trained_prompts(first, range(2)) + trained_prompts(second, range(2, 6)) == Counter(order(12))
    assert latest_checkpoint(root)[1].rollout_id == 5


def test_another_data_set_is_refused(tmp_path: Path):
    run_virtual(World(PLAN, tmp_path, stop_after=2).run())
    other = World(PLAN, tmp_path, dataset=MemoryDataset(name="others"))
    with pytest.raises(ConfigError, match=r"was reading a data set with digest .* now has .*content, order or slice"):
        run_virtual(other.run(loader(tmp_path)))


def test_without_a_tracker_a_run_starts_fresh(tmp_path: Path):
    world = run_virtual(World(replace(PLAN, rollouts=2), tmp_path).run(loader(tmp_path / "nowhere")))
    assert not of_kind(world.journal.events, ev.Resumed)
    assert [event.version for event in of_kind(world.journal.events, ev.Published)] == [0, 1, 2]


def test_groups_that_wait_behind_a_narrower_gate_are_in_the_next_checkpoint(tmp_path: Path):
    wide = replace(PLAN, staleness=2)
    run_virtual(World(wide, tmp_path, stop_after=1).run())
    _, before = latest_checkpoint(tmp_path)
    assert len(before.open_groups) + len(before.finished_groups) > 2
    # one group at a time from now on, so most of them have not been admitted again when the next one is written
    narrow = replace(wide, batch=1, staleness=0, save_interval=1)
    second = run_virtual(World(narrow, tmp_path, stop_after=2).run(loader(tmp_path)))
    _, after = latest_checkpoint(tmp_path)
    assert after.rollout_id == 2
    # finished groups that are too old for the narrower gate are dropped, and their prompts drawn again
    assert {event.reason for event in of_kind(second.journal.events, ev.Dropped)} == {"stale"}
    assert prompts_waiting(before) == trained_prompts(second, range(2, 3)) + prompts_waiting(after)


def prompts_waiting(state: RunState) -> Counter[tuple[int, int]]:
    """(epoch, row) of everything that was drawn and is not contained in the checkpoint."""
    orders = (*state.open_groups, *(stored.order for stored in state.finished_groups))
    return Counter((order.epoch, order.row) for order in orders) + Counter(state.draw_again)
