# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The worker thread: who hears of an error, and what a cancelled caller leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from relax.backends.native.loop import EngineFailed, EngineLoop
from relax.backends.native.protocol import RequestError
from relax.utils.cores import CoreShare

from .fake_runner import FakeRunner
from .test_scheduler import assert_all_rows_free, assert_as_alone, make_response, make_scheduler


class BrokenRunner(FakeRunner):
    """Breaks at the third decode step."""

    def decode(self, *arguments):
        if len(self.batch_sizes) == 2:
            raise RuntimeError("out of memory")
        return super().decode(*arguments)


async def test_a_broken_model_is_told_to_every_caller_now_and_later():
    scheduler = make_scheduler(runner=BrokenRunner(100))
    loop = EngineLoop(scheduler)
    calls = [loop.generate([make_response(f"r{i}", [1, i], seed=i, max_new=9)]) for i in range(3)]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, EngineFailed) and "out of memory" in str(outcome)
    assert loop.failed is not None
    with pytest.raises(EngineFailed, match="out of memory"):
        await loop.run(lambda s: s.counters)
    loop.close()


async def test_an_error_of_a_control_call_reaches_its_caller_only():
    loop = EngineLoop(make_scheduler(rows=20))
    with pytest.raises(RequestError, match="max_new_tokens"):
        await loop.generate([make_response("big", [1, 2], seed=0, max_new=50)])
    (response,) = await loop.generate([make_response("r", [1, 2], seed=0, max_new=5)])
    assert_as_alone(response, [1, 2])
    loop.close()


async def test_a_cancelled_caller_frees_its_slot_and_rows():
    loop = EngineLoop(make_scheduler())
    await loop.run(lambda scheduler: scheduler.pause("in_place"))
    task = asyncio.create_task(loop.generate([make_response("r", [1, 2], seed=0, max_new=50)]))
    while not await loop.run(lambda scheduler: len(scheduler.waiting)):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await loop.run(lambda scheduler: scheduler.resume())
    assert await loop.run(lambda scheduler: scheduler.counters.aborted) == 1
    loop.close()
    assert_all_rows_free(loop.scheduler)


async def test_closing_answers_those_who_wait():
    loop = EngineLoop(make_scheduler())
    await loop.run(lambda scheduler: scheduler.pause("in_place"))
    task = asyncio.create_task(loop.generate([make_response("r", [1, 2], seed=0, max_new=50)]))
    while not await loop.run(lambda scheduler: len(scheduler.waiting)):
        await asyncio.sleep(0)
    await asyncio.to_thread(loop.close)
    with pytest.raises(EngineFailed, match="closing"):
        await task
    with pytest.raises(EngineFailed, match="closing"):
        await loop.run(lambda scheduler: None)


async def test_an_engine_at_work_keeps_its_core_and_an_idle_one_lends_it(tmp_path):
    beside = CoreShare(tmp_path, 2)  # as a trainer on the same two cores sees it
    granted = []

    class WatchedRunner(FakeRunner):
        def decode(self, *arguments):
            granted.append(beside.granted())
            return super().decode(*arguments)

    loop = EngineLoop(make_scheduler(runner=WatchedRunner(100)), CoreShare(tmp_path, 2))
    assert beside.granted() == 2  # not yet at work
    await loop.generate([make_response("r", [1, 2], seed=0, max_new=5)])
    assert granted and set(granted) == {1}
    loop.close()
    assert beside.granted() == 2
    beside.close()
