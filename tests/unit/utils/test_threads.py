# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Blocking calls: their threads are used again, none waits for another, one that hangs costs its own thread only."""

import asyncio
import contextvars
import threading

import pytest

from relax.utils.threads import BlockingCalls


def test_calls_one_after_another_share_a_thread():
    async def main():
        calls = BlockingCalls("test")
        first = await calls.call(threading.get_ident)
        await asyncio.sleep(0.05)  # the thread comes back after its answer
        return first, await calls.call(threading.get_ident)

    first, second = asyncio.run(main())
    assert first == second != threading.get_ident()


def test_calls_at_the_same_time_do_not_wait_for_each_other():
    meeting = threading.Barrier(5, timeout=10.0)  # passes when all five are inside

    async def main():
        calls = BlockingCalls("test")
        return await asyncio.gather(*(calls.call(meeting.wait) for _ in range(5)))

    assert sorted(asyncio.run(main())) == [0, 1, 2, 3, 4]


def test_a_call_that_hangs_is_left_alone_and_its_thread_comes_back_when_it_returns():
    release = threading.Event()

    def hang():
        release.wait(10.0)
        return threading.get_ident()

    async def main():
        calls = BlockingCalls("test")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(calls.call(hang), 0.05)
        other = await calls.call(threading.get_ident)
        release.set()
        await asyncio.sleep(0.1)
        barrier = threading.Barrier(2, timeout=10.0)

        def meet():
            barrier.wait()
            return threading.get_ident()

        return other, set(await asyncio.gather(calls.call(meet), calls.call(meet))), threading.active_count()

    before = threading.active_count()
    other, both, after = asyncio.run(main())
    assert other in both
    assert len(both) == 2
    assert after == before + 2  # the one that hung serves again


def test_errors_and_context_variables_cross_the_border():
    word = contextvars.ContextVar("word", default="none")

    def fail():
        raise ValueError("wrong")

    def stop():
        raise StopIteration(3)

    async def main():
        calls = BlockingCalls("test")
        word.set("told")
        assert await calls.call(word.get) == "told"
        with pytest.raises(ValueError, match="wrong"):
            await calls.call(fail)
        with pytest.raises(RuntimeError, match=r"StopIteration\(3\)"):
            await calls.call(stop)
        assert await calls.call(lambda a, b: a + b, 1, 2) == 3  # its thread lives on

    asyncio.run(main())
