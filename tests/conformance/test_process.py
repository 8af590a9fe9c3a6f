# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What an engine is to the machine that it runs on."""

from __future__ import annotations

import asyncio
import contextlib

import psutil
import pytest

from relax.backends.conformance.context import Context
from relax.backends.engine_process import EngineProcess

WATCHED_S = 4.0
IDLE_SHARE = 0.1  # of a core


@pytest.mark.service
async def test_an_idle_engine_leaves_the_cores_to_others(engine: EngineProcess, context: Context):
    """An engine that has served asks nothing of the machine; one whose scheduler spins takes all of a core."""
    await context.generate(n=4)
    pid = (await engine.status())["pid"]
    before = cpu_seconds(pid)
    await asyncio.sleep(WATCHED_S)
    share = (cpu_seconds(pid) - before) / WATCHED_S
    assert share < IDLE_SHARE, f"{share:.2f} of a core over {WATCHED_S:g} s without a request"


def cpu_seconds(pid: int) -> float:
    """Of a process and all below it."""
    total = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = process.cpu_times()
            total += spent.user + spent.system
    return total
