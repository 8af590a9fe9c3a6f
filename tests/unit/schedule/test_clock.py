# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Virtual time: order as on a real clock, no waiting, deadlocks found."""

from __future__ import annotations

import asyncio
import time

import pytest

from relax.schedule.clock import RealClock, VirtualClock, run_virtual


def test_sleeps_end_in_the_order_of_their_times_and_cost_none():
    async def main():
        clock, ended = VirtualClock(), []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            ended.append((name, clock.now()))

        await asyncio.gather(sleeper("slow", 86400.0), sleeper("quick", 1.5), sleeper("middle", 60.0))
        return ended

    assert run_virtual(main()) == [("quick", 1.5), ("middle", 60.0), ("slow", 86400.0)]


def test_time_limits_follow_the_virtual_clock():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await VirtualClock().sleep(3601.0)
        return VirtualClock().now()

    assert run_virtual(main()) == 3600.0


def test_a_deadlock_is_an_error_and_not_a_wait():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock in virtual time"):
        run_virtual(main())


def test_a_cancelled_timer_neither_wakes_nor_hides_a_deadlock():
    async def main():
        timer = asyncio.get_running_loop().call_later(1000.0, lambda: None)
        timer.cancel()
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock in virtual time"):
        run_virtual(main())


def test_the_real_clock_is_monotonic_time():
    before = time.monotonic()
    now = RealClock().now()
    assert before <= now <= time.monotonic()
