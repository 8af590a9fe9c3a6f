# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Schedules in which roles and engines die, reports and rows come twice, late, stale or in another order."""

from __future__ import annotations

import json

import pytest

from benchmarks import simulate
from benchmarks.simulation.mistakes import MISTAKES, Mistake, find
from benchmarks.simulation.plan import trouble_of
from benchmarks.simulation.schedule import play

CHUNK = 20


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_no_trouble_breaks_a_promise(first: int):
    for seed in range(first, first + CHUNK):
        outcome = play(seed)
        assert not outcome.found, f"python -m benchmarks.simulate --only {seed}\n{outcome}"


def test_the_default_seeds_reach_every_kind_of_trouble():
    troubles = [trouble_of(seed)[1] for seed in range(100)]
    for name in ("kills", "crash_at", "repeats", "stale_puts", "reorders"):
        assert any(getattr(trouble, name) for trouble in troubles), name
        assert not all(getattr(trouble, name) for trouble in troubles), name
    assert any(len(trouble.crash_at) == 2 for trouble in troubles)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_a_planted_mistake_is_found(mistake: Mistake):
    found = find(mistake)
    print(mistake.name, found)
    assert found is not None


def test_a_seed_is_played_again_alone(capsys: pytest.CaptureFixture[str]):
    assert simulate.main(["--only", "5"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("RESULT ")) == {"schedules": 1, "seed": 5, "violations": 0}
