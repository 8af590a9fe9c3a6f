# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Planted faults: when they fire, how long they sleep, that they kill, and that nothing happens without a plan."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relax.schedule.clock import run_virtual
from relax.utils import faults
from relax.utils.errors import ConfigError
from relax.utils.faults import FaultPlan, Rule


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = faults.plant(None)
    yield
    faults.plant(before)


async def elapsed(point: str) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await faults.pause_at(point)
    return loop.time() - start


def test_without_a_plan_a_point_does_nothing():
    assert run_virtual(elapsed("reward")) == 0.0
    faults.reach("decode_step")
    assert faults.notes() == ()


def test_sleeps_depend_on_seed_process_and_count_and_stay_below_the_limit():
    def sleeps(seed: int, process: str) -> list[float]:
        plan = FaultPlan((Rule("reward", sleep_s=2.0),), seed, process=process)
        return [plan.due("reward")[0] for _ in range(50)]

    first = sleeps(1, "a")
    assert first == sleeps(1, "a")
    assert len({tuple(first), tuple(sleeps(2, "a")), tuple(sleeps(1, "b"))}) == 3
    assert all(0 <= seconds < 2 for seconds in first) and len(set(first)) == 50


def test_a_sleep_is_of_the_loops_own_time():
    faults.plant(FaultPlan((Rule("put", hold_s=3600.0),)))
    assert run_virtual(elapsed("put")) == pytest.approx(3600.0)
    assert run_virtual(elapsed("admit")) == 0.0


def test_a_share_of_the_reaches_sleeps():
    plan = FaultPlan((Rule("put", hold_s=1.0, chance=0.25),), process="p")
    slept = sum(plan.due("put")[0] for _ in range(400))
    assert 70 <= slept <= 130  # 100 expected, standard deviation 8.7


def test_the_nth_reach_fires_once_for_all_processes_of_a_folder(tmp_path: Path):
    rule = Rule("save", hold_s=5.0, nth=2, kill=True)
    first, second = (FaultPlan((rule,), folder=tmp_path, process=name) for name in "ab")
    assert [first.due("save") for _ in range(3)] == [(0.0, False), (5.0, True), (0.0, False)]
    assert [second.due("save") for _ in range(3)] == [(0.0, False)] * 3
    assert json.loads((tmp_path / "0.json").read_text()) == {"point": "save", "pid": os.getpid()}
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]


def test_a_child_process_inherits_the_plan_and_dies_at_its_point():
    plan = json.dumps({"rules": [{"point": "publish", "nth": 2, "kill": True}]})
    code = "from relax.utils.faults import reach\nfor n in range(3):\n    reach('publish'); print(n, flush=True)"
    env = {**os.environ, faults.VARIABLE: plan}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"rules": [{"point": "rewards"}]}', "rewards: unknown; points are admit, reward"),
        ('{"rules": [{"point": "put", "sleep": 1}]}', "sleep"),
        ('{"rules": [], "sed": 1}', "sed: unknown"),
        ("0.5", "RELAX_FAULTS='0.5'"),
        ("{", "JSONDecodeError"),
    ],
)
def test_a_plan_that_is_not_understood_is_refused(text: str, found: str):
    with pytest.raises(ConfigError) as caught:
        FaultPlan.parse(text)
    assert found in str(caught.value)
