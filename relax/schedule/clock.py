# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Time as a dependency: real on a cluster, virtual in tests and simulation."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a monotonic scale."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    """Wall time of this process."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing is runnable.

    A simulated hour costs as long as its callbacks take. It raises when nothing is runnable and no timer is left
    while the main coroutine has not finished: that is a deadlock, not a wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0

    def time(self) -> float:
        return self._virtual_now

    def _run_once(self) -> None:
        if not self._ready and not self._stopping:  # type: ignore[attr-defined]
            scheduled = self._scheduled  # type: ignore[attr-defined]
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
                self._timer_cancelled_count = max(0, self._timer_cancelled_count - 1)  # type: ignore[attr-defined]
            if not scheduled:
                raise RuntimeError("deadlock in virtual time: no task is runnable and no timer is set")
            self._virtual_now = max(self._virtual_now, scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


class VirtualClock:
    """The clock of a `VirtualTimeLoop`."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a fresh virtual-time loop and return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
