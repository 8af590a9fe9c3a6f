# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import asyncio
import subprocess
import sys

import pytest

from relax.engine.rewards.score import MATH_FUNCTION
from relax.engine.rewards.worker_pool import ScoringFailed, ScoringTimeout, WorkerPool

HOOKS = "tests.unit.engine.rewards.hooks"


async def test_a_pool_survives_loops_crashes_exceptions_and_prints():
    pool = WorkerPool(1)
    try:
        assert await pool.call(f"{HOOKS}.prints", 3, timeout_s=30.0) == 3
        with pytest.raises(ScoringTimeout, match=r"longer than 0\.2 s"):
            await pool.call(f"{HOOKS}.loops", 1, timeout_s=0.2)
        with pytest.raises(ScoringFailed, match="ended with code 7"):
            await pool.call(f"{HOOKS}.dies", 1, timeout_s=30.0)
        with pytest.raises(ScoringFailed, match="ValueError: bad 4"):
            await pool.call(f"{HOOKS}.raises", 4, timeout_s=30.0)
        assert await pool.call(f"{HOOKS}.prints", {"a": [5]}, timeout_s=30.0) == {"a": [5]}
    finally:
        await pool.close()


async def test_a_cancelled_call_never_answers_the_next_one():
    pool = WorkerPool(1)
    try:
        await pool.call(f"{HOOKS}.prints", 1, timeout_s=30.0)
        task = asyncio.create_task(pool.call(f"{HOOKS}.loops", 1, timeout_s=30.0))
        await asyncio.sleep(0.1)
        task.cancel()
        assert await pool.call(f"{HOOKS}.prints", 2, timeout_s=30.0) == 2
    finally:
        await pool.close()


async def test_closing_ends_a_call_that_runs():
    pool = WorkerPool(1)
    await pool.call(f"{HOOKS}.prints", 1, timeout_s=30.0)
    task = asyncio.create_task(pool.call(f"{HOOKS}.loops", 1, timeout_s=30.0))
    await asyncio.sleep(0.1)
    await pool.close()
    with pytest.raises(ScoringFailed):
        await task


async def test_a_limit_does_not_count_the_start_of_a_process_and_its_imports():
    pool = WorkerPool(1)
    try:
        assert await pool.call("tests.unit.engine.rewards.slow_import.one", 1, timeout_s=1.0) == 1.0
    finally:
        await pool.close()


def test_the_first_comparison_of_a_process_imports_nothing_any_more():
    code = f"""
import sys
from relax.engine.rewards.worker import resolve
equal = resolve({MATH_FUNCTION!r})
before = set(sys.modules)
assert equal(r"\\frac{{3}}{{4}}", r"\\frac{{6}}{{8}}")
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
