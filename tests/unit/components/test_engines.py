# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A fleet of engines: what an install does to those that fail, and the order of sleep and wake."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from relax.backends.tiny.engine import EchoBehaviour, EchoEngine, EchoRouter
from relax.backends.tiny.policy import WEIGHT_NAME
from relax.backends.tiny.weights import MemoryPublisher, WeightStore
from relax.components.engines import EngineFleet
from relax.schedule.clock import VirtualClock, run_virtual
from relax.utils.errors import EngineLost

TABLE = np.zeros((4, 4))


def failing(*counts: int) -> EchoBehaviour:
    """`weights_from_disk` fails at these calls."""
    return EchoBehaviour(
        fault=lambda verb, count: ConnectionError("gone") if verb == "weights_from_disk" and count in counts else None
    )


def fleet_of(*behaviours: EchoBehaviour, timeout_s: float = 10.0):
    clock, store = VirtualClock(), WeightStore()
    engines = [
        EchoEngine(TABLE, clock=clock, store=store, url=f"echo://{n}", behaviour=behaviour)
        for n, behaviour in enumerate(behaviours)
    ]
    router = EchoRouter(engines)
    named = {f"engine-{n}": engine for n, engine in enumerate(engines)}
    fleet = EngineFleet(named, clock=clock, timeout_s=timeout_s, workers=router)
    publisher = MemoryPublisher(store)
    publish = lambda version: publisher.publish(version, [(WEIGHT_NAME, torch.zeros(4, 4, dtype=torch.float64))])  # noqa: E731
    return fleet, engines, router, publish


def request(seed: int) -> dict:
    params = {"temperature": 1.0, "max_new_tokens": 1, "sampling_seed": seed}
    return {"rid": f"r{seed}", "input_ids": [1], "sampling_params": params}


def test_an_engine_that_misses_a_version_is_not_asked_until_it_has_one():
    async def main():
        fleet, engines, router, publish = fleet_of(EchoBehaviour(), failing(2))
        first = await fleet.install(publish(0))
        second = await fleet.install(publish(1))
        assert [(s.engine, s.ok) for s in first] == [("engine-0", True), ("engine-1", True)]
        assert [(s.engine, s.ok) for s in second] == [("engine-0", True), ("engine-1", False)]
        assert "gone" in second[1].error
        assert [engine.version for engine in engines] == ["1", "0"]
        answers = await asyncio.gather(*(router.post("/generate", request(n)) for n in range(6)))
        assert {answer["meta_info"]["weight_version"] for answer in answers} == {"1"}
        third = await fleet.install(publish(2))
        assert all(status.ok for status in third)
        answers = await asyncio.gather(*(router.post("/generate", request(n)) for n in range(6)))
        assert {answer["meta_info"]["weight_version"] for answer in answers} == {"2"}
        assert engines[1]._calls["generate"] == 3

    run_virtual(main())


def test_status_tells_the_exactness_of_each_engine_and_of_a_lost_one_that_it_is_none():
    async def main():
        lost = EchoBehaviour(fault=lambda verb, count: ConnectionError("gone") if verb == "info" else None)
        fleet, engines, _, _ = fleet_of(EchoBehaviour(), lost)
        status = await fleet.status()
        info = await engines[0].info()
        assert (status["engine-0"]["exact"], status["engine-0"]["exact_reason"]) == (info.exact, info.exact_reason)
        assert (status["engine-1"]["exact"], status["engine-1"]["exact_reason"]) == (False, "no answer: gone")

    run_virtual(main())


def test_an_install_that_hangs_ends_at_its_limit_and_the_engine_goes_on():
    async def main():
        hanging = EchoBehaviour(call_s=lambda verb, count: 1e6 if verb == "weights_end" else 0.0)
        fleet, engines, _, publish = fleet_of(EchoBehaviour(), hanging, timeout_s=10.0)
        statuses = await fleet.install(publish(0))
        assert [status.ok for status in statuses] == [True, False]
        assert "no answer within 10 s" in statuses[1].error
        answer = await engines[1].generate(request(1))  # not left paused
        assert answer["meta_info"]["weight_version"] == "default"
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(10.0)


def test_sleeping_engines_take_weights_and_go_on_only_with_their_cache_back():
    async def main():
        fleet, engines, router, publish = fleet_of(EchoBehaviour(), EchoBehaviour())
        await fleet.install(publish(0))
        await fleet.offload()
        waiting = asyncio.create_task(router.post("/generate", request(1)))
        await asyncio.sleep(1.0)
        await fleet.onload(("weights",))
        statuses = await fleet.install(publish(1))
        assert all(status.ok for status in statuses)
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await fleet.onload(("kv_cache",))
        assert (await waiting)["meta_info"]["weight_version"] == "1"
        assert [engine.version for engine in engines] == ["1", "1"]

    run_virtual(main())


def test_an_abort_is_lost_only_when_no_engine_takes_it():
    async def main():
        lost = EchoBehaviour(fault=lambda verb, count: EngineLost("gone") if verb == "abort" else None)
        fleet, *_ = fleet_of(EchoBehaviour(), lost)
        await fleet.abort()
        fleet, *_ = fleet_of(lost, lost)
        with pytest.raises(EngineLost, match="no engine took the abort: gone"):
            await fleet.abort("g0.0.a0.t0")

    run_virtual(main())
