# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Deterministic mode: other latencies, the same decisions, bytes of the trace, and weights.

Each schedule is played several times with the faults of one seed and the latencies of others. RELAX_DETERMINISM_SEEDS
says how many schedules (default 60).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulation.checker import check, of_kind
from benchmarks.simulation.plan import Plan, plan_of
from benchmarks.simulation.world import World
from relax.schedule import events as ev
from relax.schedule.clock import run_virtual
from tests.simulation.test_resume import crash_and_resume

SEEDS = int(os.environ.get("RELAX_DETERMINISM_SEEDS", "60"))
CHUNK, TIMINGS = 10, (1, 2)


def play(plan: Plan, folder: Path) -> World:
    folder.mkdir(parents=True, exist_ok=True)
    return run_virtual(World(plan, folder).run())


def decisions(world: World) -> list[ev.Event]:
    """What the driver decided, in order; a checkpoint's folder is not part of it."""
    return [
        replace(event, path="") if isinstance(event, ev.Checkpointed) else event
        for event in world.journal.events
        if event.decision
    ]


def trace(world: World) -> dict[str, str]:
    """{file: digest}: blocks byte for byte, notes without the seconds that a group took."""
    out = {}
    for path in sorted((world.folder / "trace").iterdir()):
        data = path.read_bytes()
        if path.suffix == ".jsonl":
            data = json.dumps([{**json.loads(line), "seconds": None} for line in data.splitlines()]).encode()
        out[path.name] = hashlib.sha256(data).hexdigest()
    return out


def deterministic_plan(seed: int) -> Plan:
    """As `plan_of`; a request that hangs would end the run, which is a test of its own."""
    plan = replace(plan_of(seed), deterministic=True, hanging_requests=0.0)
    aligned = plan.save_interval is None or plan.save_interval % plan.interval == 0
    return plan if aligned else replace(plan, save_interval=plan.interval)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_latencies_change_nothing(first: int, tmp_path: Path):
    for seed in range(first, first + CHUNK):
        plan = deterministic_plan(seed)
        worlds = [play(replace(plan, timing=t), tmp_path / f"{seed}-{t}") for t in TIMINGS]
        for world in worlds:
            check(world)
        for world in worlds[1:]:
            assert decisions(world) == decisions(worlds[0]), plan
            assert trace(world) == trace(worlds[0]), plan
            assert (world.backend.table == worlds[0].backend.table).all(), plan


BUSY = Plan(
    seed=3,
    batch=3,
    rollouts=6,
    staleness=1,
    surplus=2,
    num_engines=2,
    filtered=0.3,
    slow_requests=0.2,
    reward_failures=0.1,
)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_filter_and_over_sampling_with_two_engines_are_decided_by_id(staleness: int, tmp_path: Path):
    plan = replace(BUSY, staleness=staleness, deterministic=True)
    worlds = [play(replace(plan, timing=t), tmp_path / str(t)) for t in range(4)]
    reasons = {event.reason for event in of_kind(decisions(worlds[0]), ev.Dropped)}
    assert reasons == {"filter", "surplus"}
    for world in worlds[1:]:
        assert decisions(world) == decisions(worlds[0])
        assert trace(world) == trace(worlds[0])
        assert (world.backend.table == worlds[0].backend.table).all()


def test_control_the_same_latencies_change_the_journal_of_a_free_run(tmp_path: Path):
    worlds = [play(replace(BUSY, timing=t), tmp_path / str(t)) for t in TIMINGS]
    assert decisions(worlds[0]) != decisions(worlds[1])
    bound = [{e.rollout_id: set(e.groups) for e in of_kind(w.journal.events, ev.Bound)} for w in worlds]
    assert bound[0] != bound[1]
    assert (worlds[0].backend.table != worlds[1].backend.table).any()


def test_a_group_has_one_version_and_generation_overlaps_training(tmp_path: Path):
    world = play(replace(BUSY, deterministic=True), tmp_path)
    accepted = of_kind(world.journal.events, ev.Accepted)
    assert all(event.oldest == event.newest for event in accepted)
    # staleness 1: rollout 0 at version 0 and from then on each rollout at the version before it
    versions = {e.group: e.oldest for e in accepted}
    for event in of_kind(world.journal.events, ev.Bound):
        assert {versions[group] for group in event.groups} == {max(0, event.rollout_id - 1)}
    # rollout r + 1 is generated after rollout r is taken and before it counts as trained
    events = decisions(world)
    for rollout_id in range(5):
        taken = events.index(ev.Taken(rollout_id, 0))
        (stepped,) = [n for n, e in enumerate(events) if isinstance(e, ev.Stepped) and e.rollout_id == rollout_id]
        (bound,) = [n for n, e in enumerate(events) if isinstance(e, ev.Bound) and e.rollout_id == rollout_id + 1]
        assert taken < bound < stepped


@pytest.mark.parametrize("first", range(0, SEEDS // 3, CHUNK))
def test_a_resumed_run_ends_with_the_weights_of_the_uninterrupted_one(first: int, tmp_path: Path):
    for seed in range(first, first + CHUNK):
        plan = deterministic_plan(seed)
        plan = replace(plan, save_interval=plan.interval, rollouts=5)
        whole = play(plan, tmp_path / f"{seed}-whole")
        cut, second = crash_and_resume(replace(plan, timing=9), tmp_path / f"{seed}-cut", stop_after=1 + seed % 3)
        assert len(of_kind(cut.journal.events, ev.Stepped)) < 5
        assert (second.backend.table == whole.backend.table).all(), plan
        last = [of_kind(world.journal.events, ev.Stepped)[-1] for world in (whole, second)]
        assert last[0] == last[1], plan  # the chained digest of everything trained


def test_nothing_is_being_generated_at_a_checkpoint(tmp_path: Path):
    world = play(replace(BUSY, save_interval=2, deterministic=True), tmp_path)
    unfinished: set[int] = set()
    checkpoints = 0
    for event in decisions(world):
        if isinstance(event, ev.Admitted):
            unfinished.add(event.group)
        elif isinstance(event, ev.Dropped | ev.Accepted):
            unfinished.discard(event.group)
        elif isinstance(event, ev.Checkpointed):
            checkpoints += 1
            assert not unfinished
    assert checkpoints == 3
