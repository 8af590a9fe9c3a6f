# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Seeded schedules of whole runs. RELAX_SIMULATION_SCHEDULES says how many (default 60).

A failing seed is run again by `RELAX_SIMULATION_SEED=<seed>`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relax.schedule.clock import run_virtual
from tests.simulation.checker import check
from tests.simulation.world import Plan, World, plan_of

SCHEDULES = int(os.environ.get("RELAX_SIMULATION_SCHEDULES", "60"))
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
    assert first.journal.events == again.journal.events
    assert (first.backend.table == again.backend.table).all()
