# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A16: a coroutine that nobody awaits does nothing, in silence."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

import pytest

from benchmarks.simulation.plan import plan_of
from benchmarks.simulation.world import World
from relax.schedule.clock import run_virtual


def unawaited(run) -> list[str]:
    """Coroutines that were dropped while `run()` ran."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
        gc.collect()
    return [str(warning.message) for warning in caught if "was never awaited" in str(warning.message)]


@pytest.mark.parametrize("seed", range(6))
def test_no_coroutine_of_a_whole_run_is_forgotten(seed: int, tmp_path: Path):
    assert unawaited(lambda: run_virtual(World(plan_of(seed), tmp_path).run())) == []


def test_control_a_forgotten_coroutine_is_seen():
    async def forgetful() -> None:
        asyncio.sleep(0)

    assert unawaited(lambda: run_virtual(forgetful())) == ["coroutine 'sleep' was never awaited"]
