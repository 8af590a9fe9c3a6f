# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Seeded schedules of whole runs. RELAX_SIMULATION_SCHEDULES says how many (default 100).

A failing seed is run again by `RELAX_SIMULATION_SEED=<seed>`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulation import schedulers
from benchmarks.simulation.checker import check, of_kind, violations
from benchmarks.simulation.plan import Plan, plan_of
from benchmarks.simulation.world import World
from relax.backends.tiny.engine import EchoEngine
from relax.backends.tiny.policy import WEIGHT_NAME
from relax.schedule import events as ev
from relax.schedule.clock import run_virtual
from relax.schedule.scheduler import Scheduler
from relax.utils.errors import InternalError, WeightSyncError

SCHEDULES = int(os.environ.get("RELAX_SIMULATION_SCHEDULES", "100"))
CHUNK = 10
SEED = os.environ.get("RELAX_SIMULATION_SEED")
STARTS = range(0, SCHEDULES, CHUNK) if SEED is None else [int(SEED)]


def play(plan: Plan, folder: Path, **options: object) -> World:
    folder.mkdir(parents=True, exist_ok=True)
    return run_virtual(World(plan, folder, **options).run())


@pytest.mark.parametrize("first", STARTS)
def test_no_schedule_breaks_a_promise(first: int, tmp_path: Path):
    for seed in range(first, first + CHUNK) if SEED is None else [first]:
        check(play(plan_of(seed), tmp_path / str(seed)))


def test_a_seed_replays_to_the_same_journal_and_the_same_weights(tmp_path: Path):
    plan = plan_of(17)
    first, again = play(plan, tmp_path / "first"), play(plan, tmp_path / "again")
    assert repr(first.journal.events) == repr(again.journal.events)  # a NaN is not equal to itself
    assert (first.backend.table == again.backend.table).all()


def test_the_default_seeds_reach_every_fault_and_every_mode():
    plans = [plan_of(seed) for seed in range(100)]
    for name in ("mode", "staleness", "interval", "stale_policy", "num_engines", "pause_mode", "forward", "fan_out"):
        values = {getattr(plan, name) for plan in plans}
        assert len(values) >= 2, name
    for name in ("surplus", "slow_requests", "hanging_requests", "user_failures", "reward_failures", "filtered"):
        assert any(getattr(plan, name) for plan in plans) and not all(getattr(plan, name) for plan in plans), name
    assert any(plan.install_failures and plan.mode == "colocate" for plan in plans)
    assert any(plan.save_interval and plan.mode == "colocate" for plan in plans)
    assert any(plan.eval_interval and plan.interval == 2 for plan in plans)
    assert {plan.arrival_order for plan in plans if plan.parts > 1} == {True, False}


# ---------------------------------------------------------------------- single claims

QUIET = Plan(seed=5, batch=2, rollouts=6, staleness=1)


def test_an_engine_that_misses_a_version_gets_no_requests_and_joins_again(tmp_path: Path):
    world = play(replace(QUIET, num_engines=2, install_failures=0.6, rollouts=12, slow_requests=0.2), tmp_path)
    check(world)
    events = world.journal.events
    left = of_kind(events, ev.EngineLeft)
    assert {event.engine for event in left} == {"engine-1"}
    assert len([e for e in of_kind(events, ev.EngineJoined) if e.engine == "engine-1"]) > 1
    # policy "wait" throws nothing away: nobody sampled with weights that were too old
    assert not of_kind(events, ev.Dropped)


def test_a_run_whose_only_engine_takes_no_weights_ends_with_the_reason(tmp_path: Path):
    class Refusing(EchoEngine):
        async def weights_begin(self) -> None:
            if self.version == "1":
                raise ConnectionError("planted")
            await super().weights_begin()

    with pytest.raises(WeightSyncError, match=r"no engine took version 2: engine-0: ConnectionError: planted"):
        play(QUIET, tmp_path, engine_class=Refusing)


def test_colocate_sleeps_trains_saves_and_wakes_in_order(tmp_path: Path):
    # engine and trainer refuse every call that comes out of order, so an end is the proof; age 0 throughout
    plan = replace(QUIET, mode="colocate", staleness=0, num_engines=2, save_interval=1, eval_interval=1)
    world = play(plan, tmp_path)
    check(world)
    assert world.loop.scheduler.ages == {0: 12}
    assert len(of_kind(world.journal.events, ev.Checkpointed)) == 6
    assert len(world.evaluations) == 7  # before training, and after each rollout


def test_an_update_every_second_rollout_publishes_every_second_version(tmp_path: Path):
    world = play(replace(QUIET, interval=2), tmp_path)
    check(world)
    assert [event.version for event in of_kind(world.journal.events, ev.Published)] == [0, 2, 4, 6]
    assert set(world.loop.scheduler.ages) == {0, 1}


def test_staleness_zero_trains_the_same_weights_whatever_the_latencies(tmp_path: Path):
    # every rollout is made of the groups that its version admits, so only the order of arrival differs
    plan = replace(QUIET, staleness=0)
    tables = []
    for name, pause_mode, slow in (("a", "retract", 0.0), ("b", "abort", 0.5), ("c", "in_place", 0.3)):
        world = play(replace(plan, pause_mode=pause_mode, slow_requests=slow), tmp_path / name)
        tables.append(world.backend.table)
    assert (tables[0] == tables[1]).all()
    assert (tables[0] == tables[2]).all()


def test_over_sampling_admits_nothing_that_no_rollout_can_train(tmp_path: Path):
    # staleness 0: once rollout r is bound, a group of version r can never be trained, however long training takes
    world = play(replace(QUIET, staleness=0, surplus=2), tmp_path)
    check(world)
    admitted = len(of_kind(world.journal.events, ev.Admitted))
    # at most 4 groups at each of the 6 versions, and one for each that is dropped by its own fault (none here)
    assert admitted <= 24
    drawn_again = [(e.epoch, e.row) for e in of_kind(world.journal.events, ev.Admitted)]
    dropped = {e.group for e in of_kind(world.journal.events, ev.Dropped)}
    trained = {g for e in of_kind(world.journal.events, ev.Bound) for g in e.groups}
    assert dropped | trained == set(range(admitted))
    # a prompt that was started in vain comes again: the first 12 draws of the order are all trained but for those in
    # flight at the end
    assert len(set(drawn_again)) < admitted


@pytest.mark.parametrize("rollouts", [1, 2, 3])
@pytest.mark.parametrize("surplus", [0, 2])
def test_a_run_of_one_two_or_three_rollouts_ends_cleanly(rollouts: int, surplus: int, tmp_path: Path):
    """A13, A23, A26: the last rollout of any run passes every gate."""
    # groups in flight at the end are dropped with a reason, whatever was admitted ahead
    world = play(replace(QUIET, rollouts=rollouts, surplus=surplus, staleness=2), tmp_path)
    check(world)
    assert world.loop.scheduler.finished and not world.loop.scheduler.open


def test_a_failing_user_function_ends_the_group_with_its_reason(tmp_path: Path):
    world = play(replace(QUIET, user_failures=0.5), tmp_path)
    check(world)
    assert {event.reason for event in of_kind(world.journal.events, ev.Dropped)} == {"user_error"}


def test_a_hanging_request_is_given_up_at_its_time_limit(tmp_path: Path):
    world = play(replace(QUIET, hanging_requests=0.15, group_size=2), tmp_path)
    check(world)
    assert world.loop.scheduler.finished


# ---------------------------------------------------------------------- planted faults: the checker must find them


def test_a_loosened_gate_is_found(tmp_path: Path):
    plan = replace(QUIET, stale_policy="drop", staleness=0, rollouts=8)
    found = violations(play(plan, tmp_path, scheduler_class=schedulers.OneRolloutMore))
    assert any("too old for rollout" in text for text in found)
    assert any("groups are open at the admission" in text for text in found)


def test_weights_that_change_before_the_switch_are_found(tmp_path: Path):
    """A17."""

    class Torn(EchoEngine):
        async def weights_from_disk(self, folder: Path, version: int) -> None:
            await super().weights_from_disk(folder, version)
            self._table = self._store.read(folder)[1][WEIGHT_NAME]

        async def pause(self, mode: str) -> None: ...

    found = violations(play(replace(QUIET, rollouts=10, slow_requests=0.3), tmp_path, engine_class=Torn))
    assert any("was not sampled by the version that it names" in text for text in found)


def test_a_changed_byte_of_the_trace_is_found(tmp_path: Path):
    world = play(QUIET, tmp_path)
    event = of_kind(world.journal.events, ev.Completed)[3]
    path = tmp_path / "trace" / event.file
    data = bytearray(path.read_bytes())
    data[event.offset + event.length - 1] ^= 1
    path.write_bytes(bytes(data))
    assert any("the trace has other bytes" in text for text in violations(world))


def test_a_version_published_ahead_of_its_training_is_refused(tmp_path: Path):
    """A26."""
    scheduler = Scheduler(play(QUIET, tmp_path).loop.scheduler.settings)
    with pytest.raises(InternalError, match="version 1 was published after 0"):
        scheduler.apply(ev.Published(1))
