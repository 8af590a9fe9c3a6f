# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""EchoEngine keeps the rules of an engine. Time is virtual."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from relax.backends.engine_client import EngineRefused
from relax.backends.tiny.engine import EchoBehaviour, EchoEngine, EchoRouter
from relax.backends.tiny.policy import WEIGHT_NAME, log_prob_table
from relax.backends.tiny.weights import MemoryPublisher, WeightStore
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.schedule.clock import VirtualClock, run_virtual
from relax.utils.errors import EngineLost
from relax.utils.rng import stream_key

TABLE = np.random.default_rng(0).normal(size=(6, 6))
ONE_SECOND = EchoBehaviour(token_s=lambda rid, place: 1.0)


def request(seed: int = 7, *, rid: str = "g0.0.a0.t0", length: int = 5, temperature: float = 1.0, **params) -> dict:
    params = {"temperature": temperature, "max_new_tokens": length, "sampling_seed": seed, **params}
    return {"rid": rid, "input_ids": [1, 2], "sampling_params": params}


def engine_of(behaviour: EchoBehaviour | None = None, *, eos_id: int = 99, table: np.ndarray = TABLE):
    store = WeightStore()
    engine = EchoEngine(table, clock=VirtualClock(), store=store, eos_id=eos_id, behaviour=behaviour)
    publisher = MemoryPublisher(store)

    def publish(version: int, table: np.ndarray) -> Path:
        return Path(publisher.publish(version, [(WEIGHT_NAME, torch.from_numpy(table))]).folder)

    return engine, publish


async def update(engine: EchoEngine, folder: Path, version: int) -> None:
    await engine.weights_begin()
    await engine.weights_from_disk(folder, version)
    await engine.weights_end(version)


def test_answers_are_sglangs_and_depend_on_the_seed_alone():
    async def main():
        engine, _ = engine_of(ONE_SECOND)
        alone = await engine.generate(request())
        together = await asyncio.gather(
            engine.generate(request(rid="a")),
            engine.generate(request(8, rid="b")),
            engine.generate(request(9, rid="c")),
        )
        assert together[0]["output_ids"] == alone["output_ids"]
        meta = alone["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 5}
        assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 5}]
        context = [2, *alone["output_ids"]]
        right = log_prob_table(TABLE)
        assert [entry[0] for entry in meta["output_token_logprobs"]] == [
            right[last, token] for last, token in itertools.pairwise(context)
        ]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == alone["output_ids"]

    run_virtual(main())


def test_samples_follow_the_table():
    async def main():
        engine, _ = engine_of()
        answers = [await engine.generate(request(stream_key(0, "sample", n), length=1)) for n in range(4000)]
        return Counter(answer["output_ids"][0] for answer in answers)

    counts, p = run_virtual(main()), np.exp(log_prob_table(TABLE)[2])
    # four standard deviations of a binomial with n = 4000
    assert all(abs(counts[token] - 4000 * p[token]) < 4 * np.sqrt(4000 * p[token]) for token in range(6))


def test_temperature_zero_is_greedy_and_stops_end_a_response():
    async def main():
        best = int(TABLE[2].argmax())
        engine, _ = engine_of(eos_id=best)
        answer = await engine.generate(request(temperature=0.0))
        assert answer["output_ids"] == [best]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": best}
        engine, _ = engine_of()
        answer = await engine.generate(request(temperature=0.0, stop_token_ids=[best]))
        assert answer["output_ids"] == [best]

    run_virtual(main())


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_tokens_after_an_update_carry_the_new_version_and_its_log_probs(mode: str):
    async def main():
        engine, publish = engine_of(ONE_SECOND)
        running = asyncio.create_task(engine.generate(request()))
        await asyncio.sleep(2.5)  # two tokens are out
        await engine.pause(mode)
        await asyncio.sleep(100.0)
        new = -TABLE
        await update(engine, publish(3, new), 3)
        await engine.resume()
        answer = await running
        spans = answer["meta_info"]["weight_versions"]
        assert spans == [{"version": "default", "start": 0, "end": 2}, {"version": "3", "start": 2, "end": 5}]
        context = [2, *answer["output_ids"]]
        tables = [log_prob_table(TABLE)] * 2 + [log_prob_table(new)] * 3
        right = [t[a, b] for t, a, b in zip(tables, context[:-1], context[1:], strict=True)]
        assert [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]] == right

    run_virtual(main())


def test_an_aborting_pause_ends_what_runs_and_holds_what_comes():
    async def main():
        engine, _ = engine_of(EchoBehaviour(token_s=lambda rid, place: 1e6 if place == 2 else 1.0))
        running = asyncio.create_task(engine.generate(request()))
        await asyncio.sleep(10.0)  # hangs in its third token
        await engine.pause("abort")
        answer = await running
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(answer["output_ids"]) == 2
        waiting = asyncio.create_task(engine.generate(request(rid="next", length=1)))
        await asyncio.sleep(50.0)
        assert not waiting.done()
        await engine.resume()
        assert len((await waiting)["output_ids"]) == 1

    run_virtual(main())


def test_one_request_can_be_aborted():
    async def main():
        engine, _ = engine_of(ONE_SECOND)
        first = asyncio.create_task(engine.generate(request(rid="first")))
        second = asyncio.create_task(engine.generate(request(rid="second")))
        await asyncio.sleep(1.5)
        await engine.abort("first")
        assert (await first)["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await second)["meta_info"]["finish_reason"]["type"] == "length"
        assert engine.num_running == 0

    run_virtual(main())


def test_memory_is_given_back_and_taken_in_order():
    async def main():
        engine, publish = engine_of(ONE_SECOND)
        running = asyncio.create_task(engine.generate(request()))
        await asyncio.sleep(0.5)
        with pytest.raises(EngineRefused, match="abort, then flush, then sleep"):
            await engine.sleep()
        await engine.pause("abort")
        await running
        with pytest.raises(EngineRefused, match="abort, then flush, then sleep"):
            await engine.sleep()
        await engine.flush()
        await engine.sleep()
        with pytest.raises(EngineRefused, match="the weights sleep"):
            await engine.weights_begin()
        with pytest.raises(EngineRefused, match="wake the weights before the KV cache"):
            await engine.wake(("kv_cache",))
        await engine.wake(("weights",))
        await update(engine, publish(1, TABLE), 1)
        with pytest.raises(EngineRefused, match=r"\['kv_cache'\] sleep; wake them first"):
            await engine.resume()
        await engine.wake(("kv_cache",))
        await engine.resume()
        assert (await engine.generate(request()))["meta_info"]["weight_version"] == "1"

    run_virtual(main())


def test_weights_change_only_at_the_end_of_an_update():
    async def main():
        engine, publish = engine_of()
        with pytest.raises(EngineRefused, match="no weight update has begun"):
            await engine.weights_from_disk(publish(1, TABLE), 1)
        await engine.weights_begin()
        with pytest.raises(EngineRefused, match="brought no weights"):
            await engine.weights_end(1)
        await engine.weights_from_disk(publish(1, -TABLE), 1)
        assert (await engine.generate(request()))["meta_info"]["weight_version"] == "default"
        await engine.weights_begin()  # an update that was given up leaves nothing behind
        with pytest.raises(EngineRefused, match="brought no weights"):
            await engine.weights_end(1)
        assert (await engine.info()).weight_version == "default"

    run_virtual(main())


def test_a_version_on_disk_is_read_as_well(tmp_path: Path):
    manifest = SharedMemoryPublisher(tmp_path / "weights").publish(2, [(WEIGHT_NAME, torch.from_numpy(-TABLE))])

    async def main():
        engine, _ = engine_of()
        await update(engine, Path(manifest.folder), 2)
        answer = await engine.generate(request(length=1))
        token = answer["output_ids"][0]
        assert answer["meta_info"]["output_token_logprobs"][0][0] == log_prob_table(-TABLE)[2, token]

    run_virtual(main())


def test_calls_cost_the_time_and_raise_the_faults_that_were_injected():
    async def main():
        behaviour = EchoBehaviour(
            call_s=lambda verb, count: 10.0 * count if verb == "flush" else 0.0,
            fault=lambda verb, count: ConnectionError("planted") if (verb, count) == ("resume", 2) else None,
        )
        engine, _ = engine_of(behaviour)
        await engine.flush()
        await engine.flush()
        await engine.resume()
        with pytest.raises(ConnectionError, match="planted"):
            await engine.resume()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 30.0


def test_the_router_takes_the_least_loaded_listed_engine():
    async def main():
        engines = [EchoEngine(TABLE, clock=VirtualClock(), url=f"echo://{n}", behaviour=ONE_SECOND) for n in range(3)]
        router = EchoRouter(engines)
        await router.remove_worker("echo://1")
        calls = [asyncio.create_task(router.post("/generate", request(rid=f"r{n}"))) for n in range(4)]
        await asyncio.sleep(0.5)
        assert [engine.num_running for engine in engines] == [2, 0, 2]
        await asyncio.gather(*calls)
        for url in ("echo://0", "echo://2"):
            await router.remove_worker(url)
        with pytest.raises(EngineLost, match="lists no engine"):
            await router.post("/generate", request())
        await router.add_worker("echo://1")
        assert await router.post("/generate", request())

    run_virtual(main())
