# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Groups under the generator: every admitted group ends exactly once. Time is virtual."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from relax.engine.rollout.attempts import GenerationOptions
from relax.engine.rollout.groups import AdmittedGroup, GroupGenerator
from relax.engine.rollout.hooks import load_hook, make_hook
from relax.engine.rollout.sampling import SamplingOptions
from relax.schedule.clock import VirtualClock, run_virtual
from relax.utils.errors import EngineLost, InternalError, UserCodeError
from relax.utils.http_utils import HttpError, register_local, unregister_local
from relax.utils.types import Sample
from tests.builders import tiny_tokenizer
from tests.fake_engine import FakeEngine
from tests.unit.engine.rollout.limits import NO_LIMITS

URL = "http://10.0.0.2:3000"
ARGS = SimpleNamespace(sglang_router_ip="10.0.0.2", sglang_router_port=3000, hf_checkpoint=None, **NO_LIMITS)


class LengthScorer:
    """Reward = sampled tokens; `seconds` of virtual time a group."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error = seconds, error

    async def score(self, samples: list[Sample]) -> None:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        for sample in samples:
            sample.reward = float(sample.response_length)


@dataclass
class FilterOutput:
    keep: bool
    reason: str | None = None


@pytest.fixture(scope="module", autouse=True)
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    ARGS.hf_checkpoint = str(tmp_path_factory.mktemp("tokenizer"))
    tiny_tokenizer().save_pretrained(ARGS.hf_checkpoint)


@pytest.fixture
def engine():
    engine = FakeEngine(token_s=1.0)
    register_local(URL, engine)
    yield engine
    unregister_local(URL)


def make_generator(engine: FakeEngine, hook: Any = None, **changes: Any) -> GroupGenerator:
    parts = {"scorer": LengthScorer(), "dynamic_filter": None, "engines": engine}
    parts.update({name: changes.pop(name) for name in list(changes) if name in parts})
    options = {"seed": 1, "max_response_len": 64, **changes}
    return GroupGenerator(
        args=ARGS,
        hook=hook or load_hook(),
        sampling_params=SamplingOptions(max_response_len=64).params(),
        options=GenerationOptions(**options),
        clock=VirtualClock(),
        **parts,
    )


def group(number: int, num_samples: int = 2) -> AdmittedGroup:
    return AdmittedGroup(number, Sample(group_index=number, tokens=[2, 3, number], row=number), num_samples)


def group_of(payload: dict[str, Any]) -> int:
    return int(payload["rid"].split(".")[0][1:])


def test_groups_come_in_order_of_completion_with_samples_in_index_order(engine):
    engine.num_tokens = lambda payload: 10 - group_of(payload) if payload["rid"].split(".")[1] == "0" else 2

    async def main():
        generator = make_generator(engine)
        generator.admit([group(n) for n in (1, 2, 3)])
        finished = [await generator.next_finished() for _ in range(3)]
        assert await generator.stop() == type(await generator.stop())([], [])
        return finished

    finished = run_virtual(main())
    assert [f.group for f in finished] == [3, 2, 1]
    assert [[s.index for s in f.samples] for f in finished] == [[0, 1]] * 3
    assert [f.sampled_tokens for f in finished] == [7 + 2, 8 + 2, 9 + 2]
    assert [s.reward for s in finished[0].samples] == [7.0, 2.0]
    assert finished[0].seconds == {"generate": 7.0, "score": 0.0, "reward_queue": 0.0}


def test_all_samples_of_a_group_are_requested_before_any_is_answered(engine):
    async def main():
        generator = make_generator(engine)
        generator.admit([group(1, num_samples=8)])
        await asyncio.sleep(0.5)
        running = len(engine.running)
        await generator.stop()
        return running

    assert run_virtual(main()) == 8


def test_permits_bound_the_requests_and_1500_run_when_1500_are_allowed(engine):
    """A25: there is no hidden cap below the stated one."""

    async def peak(limit: int) -> int:
        engine.peak = 0
        generator = make_generator(engine, max_running_samples=limit)
        generator.admit([group(n, num_samples=15) for n in range(100)])
        for _ in range(100):
            assert (await generator.next_finished()).accepted
        await generator.stop()
        return engine.peak

    assert run_virtual(peak(1500)) == 1500
    assert run_virtual(peak(32)) == 32


def test_the_number_of_calls_follows_the_engines(engine):
    async def main() -> list[int]:
        generator = make_generator(engine, max_running_samples=2)
        generator.admit([group(n, num_samples=1) for n in range(40)])  # of 5 s each
        running = []
        for limit, wait_s in ((2, 2.0), (6, 1.0), (1, 6.0), (3, 0.5)):  # 6 s: those that ran before have ended
            generator.resize(limit)
            await asyncio.sleep(wait_s)
            running.append(len(engine.running))
        await generator.stop()
        return running

    assert run_virtual(main()) == [2, 6, 1, 3]


def test_a_slow_consumer_loses_no_group(engine):
    """A12."""

    async def main():
        generator = make_generator(engine)
        generator.admit([group(n) for n in range(10)])
        seen = []
        for _ in range(10):
            await asyncio.sleep(50.0)
            seen.append((await generator.next_finished()).group)
        return seen

    assert sorted(run_virtual(main())) == list(range(10))


def test_the_filter_drops_with_its_reason_and_the_group_still_comes(engine):
    async def main():
        keep = lambda args, samples: FilterOutput(samples[0].group_index != 2, "zero_std_5.0")  # noqa: E731
        generator = make_generator(engine, dynamic_filter=keep)
        generator.admit([group(n) for n in (1, 2)])
        return [await generator.next_finished() for _ in range(2)], generator.drop_counts

    finished, counts = run_virtual(main())
    assert {f.group: (f.accepted, f.reason) for f in finished} == {1: (True, None), 2: (False, "zero_std_5.0")}
    assert counts == {"zero_std_5.0": 1}
    assert len(finished[1].samples) == 2


def failing_until(attempt: int):
    """A generate function whose sample 1 raises in attempts below `attempt`."""

    async def function(args, sample, sampling_params):
        if sample.index == 1 and sample.attempt < attempt:
            raise RuntimeError("tool broke")
        return await load_hook().function(args, sample, sampling_params)

    return make_hook(function, "user.tool")


def test_a_failed_sample_is_generated_again_as_its_next_attempt(engine):
    async def main():
        generator = make_generator(engine, failing_until(2), on_failure="regenerate")
        generator.admit([group(5)])
        return await generator.next_finished()

    finished = run_virtual(main())
    assert finished.accepted
    assert [s.attempt for s in finished.samples] == [0, 2]
    assert finished.failures == {"user_error": 2}
    assert sorted(r["rid"] for r in engine.requests) == ["g5.0.a0.t0", "g5.1.a2.t0"]


def test_attempts_are_bounded_and_the_group_is_dropped_and_its_requests_aborted(engine):
    async def main():
        generator = make_generator(engine, failing_until(9), on_failure="regenerate", max_attempts=3)
        generator.admit([group(5)])
        finished = await generator.next_finished()
        return finished, generator.num_running

    finished, running = run_virtual(main())
    assert (finished.accepted, finished.reason, running) == (False, "user_error", 0)
    assert finished.failures == {"user_error": 3}
    assert engine.aborted == ["g5.0.a0.t0"]


def test_policy_fail_raises_the_error_and_hands_every_group_back(engine):
    async def main():
        generator = make_generator(engine, failing_until(1), on_failure="fail")
        generator.admit([group(5), group(6)])
        with pytest.raises(UserCodeError, match=r"user.tool \(sample [56].1\): raised RuntimeError: tool broke"):
            await generator.next_finished()
        with pytest.raises(UserCodeError):
            await generator.next_finished()
        return await generator.stop()

    left = run_virtual(main())
    assert [g.group for g in left.unfinished] == [5, 6]
    assert left.finished == []


def test_stop_returns_each_group_once_and_leaves_no_task(engine):
    engine.num_tokens = lambda payload: 2 if group_of(payload) < 3 else 50

    async def main():
        generator = make_generator(engine, max_running_samples=6)
        generator.admit([group(n) for n in range(9)])
        await asyncio.sleep(3.5)
        consumed = await generator.next_finished()
        left = await generator.stop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return consumed, left, tasks

    consumed, left, tasks = run_virtual(main())
    ended = [consumed.group] + [f.group for f in left.finished]
    assert sorted(ended) == [0, 1, 2]
    assert [g.group for g in left.unfinished] == [3, 4, 5, 6, 7, 8]
    assert tasks == set()
    assert engine.running == {}


def test_discarded_groups_never_come_and_may_be_admitted_again(engine):
    """A group that is too old is cut off and regenerated under its id as the next attempt."""
    engine.num_tokens = lambda payload: 20

    async def main():
        generator = make_generator(engine)
        generator.admit([group(1), group(2)])
        await asyncio.sleep(3.5)
        generator.discard([1, 99])
        again = group(1)
        again.prompt.attempt = 1
        generator.admit([again])
        finished = [await generator.next_finished() for _ in range(2)]
        assert generator.num_running == 0
        return [(f.group, f.samples[0].attempt) for f in finished]

    assert run_virtual(main()) == [(2, 0), (1, 1)]
    assert sorted(engine.aborted) == ["g1.0.a0.t0", "g1.1.a0.t0"]
    assert engine.running == {}


def test_a_pause_holds_new_requests_back_and_lets_running_ones_end(engine):
    async def main():
        generator = make_generator(engine, max_running_samples=2)
        generator.admit([group(1), group(2)])
        await asyncio.sleep(1.5)
        generator.pause()
        await asyncio.sleep(100.0)
        during = [r["rid"] for r in engine.requests]
        generator.resume()
        finished = [await generator.next_finished() for _ in range(2)]
        return during, [f.group for f in finished], asyncio.get_running_loop().time()

    during, groups, end = run_virtual(main())
    assert during == ["g1.0.a0.t0", "g1.1.a0.t0"]
    assert groups == [1, 2]
    assert end == pytest.approx(101.5 + 5.0)


def test_time_in_a_pause_does_not_count_against_the_time_limit(engine):
    async def main():
        async def two_turns(args, sample, sampling_params):
            for _ in range(2):
                await load_hook().function(args, sample, sampling_params)
            return sample

        generator = make_generator(engine, make_hook(two_turns, "user.two"), call_timeout_s=11.0)
        generator.admit([group(1)])
        await asyncio.sleep(1.0)
        generator.pause()
        await asyncio.sleep(500.0)
        generator.resume()
        return await generator.next_finished()

    finished = run_virtual(main())
    assert finished.accepted
    assert [s.response_length for s in finished.samples] == [10, 10]


def test_with_strict_timing_a_time_out_ends_the_run_and_another_failure_follows_the_policy(engine):
    async def endless(args, sample, sampling_params):
        await asyncio.sleep(1e6)

    async def main():
        generator = make_generator(engine, make_hook(endless, "user.endless"), call_timeout_s=5.0, strict_timing=True)
        generator.admit([group(1)])
        with pytest.raises(UserCodeError, match=r"user.endless .* did not return within 5 s"):
            await generator.next_finished()
        await generator.stop()
        generator = make_generator(engine, failing_until(1), strict_timing=True)
        generator.admit([group(1)])
        return await generator.next_finished()

    assert run_virtual(main()).failures == {"user_error": 1}


@pytest.mark.parametrize("partial", [False, True])
def test_an_abort_ends_requests_and_resume_generates_them_again(engine, partial):
    async def main():
        generator = make_generator(engine, partial_rollout=partial)
        generator.admit([group(1)])
        await asyncio.sleep(2.5)
        await generator.abort()
        assert engine.running == {}
        engine.version = 1
        generator.resume()
        return await generator.next_finished()

    finished = run_virtual(main())
    sample = finished.samples[0]
    assert finished.accepted
    assert (sample.attempt, sample.abort_count, sample.status) == (1, 1, Sample.Status.COMPLETED)
    if partial:  # two tokens came before the abort, one more while it was cut; the rest is a new request
        kept = sample.weight_versions.count(0)
        assert kept in (2, 3)
        assert sample.weight_versions == [0] * kept + [1] * 5
        assert engine.requests[-2]["input_ids"] == [2, 3, 1, *sample.tokens[3 : 3 + kept]]
        assert engine.requests[-2]["rid"] == "g1.0.a1.t1"
    else:
        assert sample.weight_versions == [1] * 5
        assert engine.requests[-2]["rid"] == "g1.0.a1.t0"
    assert len(sample.tokens) == 3 + len(sample.weight_versions)


def test_an_abort_that_the_engine_ignores_is_an_error_at_its_deadline(engine):
    async def main():
        generator = make_generator(engine, engines=None)
        engine.num_tokens = lambda payload: 1000
        generator.admit([group(1)])
        await asyncio.sleep(1.0)
        with pytest.raises(EngineLost, match=r"2 requests did not end within 30 s of an abort: \['g1.0.a0.t0'"):
            await generator.abort(deadline_s=30.0)
        await generator.stop()

    run_virtual(main())


def test_a_lost_engine_is_tried_again_with_growing_waits(engine):
    engine.errors = [EngineLost("gone"), HttpError("POST", URL, 503, "no_available_workers")]

    async def main():
        generator = make_generator(engine, engine_wait_s=4.0)
        generator.admit([group(1, num_samples=1)])
        finished = await generator.next_finished()
        return finished, asyncio.get_running_loop().time()

    finished, end = run_virtual(main())
    assert finished.accepted
    assert finished.failures == {"engine": 2}
    assert end == pytest.approx(4.0 + 8.0 + 5.0)


def test_a_request_that_the_engine_refuses_fails_at_once(engine):
    engine.errors = [HttpError("POST", URL, 400, "context length 8 exceeded")]

    async def main():
        generator = make_generator(engine)
        generator.admit([group(1, num_samples=1)])
        with pytest.raises(HttpError, match="answered 400: context length 8 exceeded"):
            await generator.next_finished()
        return await generator.stop()

    assert [g.group for g in run_virtual(main()).unfinished] == [1]


def test_what_the_scorer_raises_fails_the_run_because_it_has_applied_its_policy_already(engine):
    scorer = LengthScorer(error=UserCodeError("raised KeyError", path="user.reward", sample="1.0"))

    async def main():
        generator = make_generator(engine, scorer=scorer)
        generator.admit([group(1)])
        try:
            with pytest.raises(UserCodeError, match="raised KeyError"):
                await generator.next_finished()
        finally:
            await generator.stop()

    run_virtual(main())


def test_scoring_of_one_group_overlaps_generation_of_the_next(engine):
    async def main():
        generator = make_generator(engine, scorer=LengthScorer(seconds=20.0), max_running_samples=2)
        generator.admit([group(1), group(2)])
        for _ in range(2):
            await generator.next_finished()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(5.0 + 5.0 + 20.0)


def test_admitting_a_group_twice_is_our_own_error(engine):
    async def main():
        generator = make_generator(engine)
        generator.admit([group(1)])
        with pytest.raises(InternalError, match="admitted twice"):
            generator.admit([group(1)])
        await generator.stop()

    run_virtual(main())


def test_generation_does_not_depend_on_arrival_order(engine):
    """The same groups in another order and under another limit give the same tokens."""

    async def tokens(order: list[int], limit: int) -> dict[int, list[list[int]]]:
        generator = make_generator(engine, max_running_samples=limit)
        generator.admit([group(n, num_samples=3) for n in order])
        finished = [await generator.next_finished() for _ in order]
        return {f.group: [s.tokens for s in f.samples] for f in finished}

    assert run_virtual(tokens([1, 2, 3], 100)) == run_virtual(tokens([3, 1, 2], 1))


def test_a_fan_out_keeps_its_parts_in_the_group(engine):
    """G5: one call may yield several samples; the group holds all of them in (index, part) order."""

    async def fan(args, sample, sampling_params):
        import copy

        out = await load_hook().function(args, sample, sampling_params)
        return [out] if sample.index == 0 else [out, copy.deepcopy(out), copy.deepcopy(out)]

    async def main():
        generator = make_generator(engine, make_hook(fan, "user.fan"))
        generator.admit([group(1)])
        return await generator.next_finished()

    finished = run_virtual(main())
    assert [(s.index, s.part) for s in finished.samples] == [(0, None), (1, 0), (1, 1), (1, 2)]
