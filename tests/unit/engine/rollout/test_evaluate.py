# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Evaluation counts every row, and its numbers are the stated ones."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from relax.config.evaluation import EvalDataset
from relax.config.frozen import freeze
from relax.engine.rollout.attempts import GenerationOptions
from relax.engine.rollout.evaluate import EVAL_GROUP_BASE, EvalTask, eval_task, evaluate, pass_at_k
from relax.engine.rollout.hooks import load_hook, make_hook
from relax.engine.rollout.sampling import SamplingOptions
from relax.schedule.clock import VirtualClock, run_virtual
from relax.utils.errors import ConfigError
from relax.utils.http_utils import register_local, unregister_local
from relax.utils.rng import stream_key
from relax.utils.types import Sample
from tests.fake_engine import FakeEngine
from tests.unit.engine.rollout.limits import NO_LIMITS

URL = "http://10.0.0.3:3000"
ARGS = SimpleNamespace(sglang_router_ip="10.0.0.3", sglang_router_port=3000, hf_checkpoint="none", **NO_LIMITS)
GREEDY = SamplingOptions(max_response_len=6, temperature=0.0).params()


class RowScorer:
    """Reward 1 for even rows."""

    async def score(self, samples: list[Sample]) -> None:
        for sample in samples:
            sample.reward = float(sample.row % 2 == 0)


@pytest.fixture
def engine():
    engine = FakeEngine(token_s=1.0)
    register_local(URL, engine)
    yield engine
    unregister_local(URL)


def rows(count: int) -> list[Sample]:
    return [Sample(tokens=[2, 3, row], row=row) for row in range(count)]


def run(datasets: list[EvalTask], hook: Any = None, scorer: Any = None, **options: Any):
    return run_virtual(
        evaluate(
            datasets,
            args=ARGS,
            hook=hook or load_hook(),
            options=GenerationOptions(**{"seed": 42, **options}),
            scorer=scorer or RowScorer(),
            clock=VirtualClock(),
        )
    )


def test_the_last_partial_batch_counts(engine):
    """D10: 10 rows at 4 at a time are 10 rewards, in row order."""
    (result,) = run([EvalTask("digits", rows(10), GREEDY)], max_running_samples=4)
    assert [s.row for s in result.samples] == list(range(10))
    assert result.rewards == [1.0, 0.0] * 5
    assert result.mean_reward == 0.5
    assert result.seconds == 15.0  # three waves of five tokens
    assert engine.peak == 4


def test_evaluation_passes_its_own_sampling_and_the_eval_stream(engine):
    seen = []

    async def spy(args, sample, sampling_params, evaluation=False):
        seen.append(evaluation)
        return await load_hook().function(args, sample, sampling_params)

    run([EvalTask("digits", rows(1), GREEDY, num_samples=2)], make_hook(spy, "user.spy"))
    assert seen == [True, True]
    assert [r["sampling_params"]["temperature"] for r in engine.requests] == [0.0, 0.0]
    assert [r["sampling_params"]["sampling_seed"] for r in engine.requests] == [
        stream_key(42, "eval", EVAL_GROUP_BASE, index, 0) for index in (0, 1)
    ]


def test_data_sets_have_request_ids_of_their_own(engine):
    run([EvalTask("a", rows(2), GREEDY), EvalTask("b", rows(2), GREEDY)])
    rids = [r["rid"] for r in engine.requests]
    assert len(set(rids)) == 4
    assert all(int(rid.split(".")[0][1:]) >= EVAL_GROUP_BASE for rid in rids)


def test_truncated_responses_are_told(engine):
    engine.num_tokens = lambda payload: 5 if payload["input_ids"][2] == 0 else 50
    (result,) = run([EvalTask("digits", rows(4), GREEDY)])
    assert result.truncated == [False, True, True, True]
    assert result.truncated_fraction == 0.75
    assert [s.response_length for s in result.samples] == [5, 6, 6, 6]


def test_a_sample_that_cannot_be_had_counts_as_zero_and_is_named(engine):
    async def broken(args, sample, sampling_params):
        if sample.row == 2:
            raise RuntimeError("no tool")
        return await load_hook().function(args, sample, sampling_params)

    (result,) = run([EvalTask("digits", rows(4), GREEDY)], make_hook(broken, "user.b"), on_failure="drop")
    assert result.rewards == [1.0, 0.0, 0.0, 0.0]
    assert result.failures == {"user_error": 1}


def test_pass_at_k_equals_enumeration():
    """n = 5, c = 2: of the C(5, k) draws, count those that hold a pass."""
    passed = [1, 1, 0, 0, 0]
    for k in range(1, 6):
        draws = list(itertools.combinations(passed, k))
        assert pass_at_k(5, 2, k) == pytest.approx(sum(any(d) for d in draws) / len(draws), abs=1e-15)


def test_pass_rates_average_over_rows(engine):
    class Scorer:
        async def score(self, samples: list[Sample]) -> None:
            await asyncio.sleep(0)
            for sample in samples:
                sample.reward = float(sample.row == 0 or sample.index == 3)

    (result,) = run([EvalTask("digits", rows(2), GREEDY, num_samples=4)], scorer=Scorer())
    assert result.pass_rates() == {1: (1.0 + 0.25) / 2, 2: (1.0 + 0.5) / 2, 4: 1.0}


def test_a_reward_that_could_not_be_had_counts_as_zero_and_is_named(engine):
    """V9: scoring leaves NaN; the mean is still over rows x n."""

    class Scorer:
        async def score(self, samples: list[Sample]) -> None:
            for sample in samples:
                sample.reward = math.nan if sample.row == 1 else 1.0

    (result,) = run([EvalTask("digits", rows(4), GREEDY)], scorer=Scorer())
    assert result.rewards == [1.0, 0.0, 1.0, 1.0]
    assert result.failures == {"reward_error": 1}
    assert result.pass_rates() == {1: 0.75}


def test_a_configured_data_set_keeps_its_own_settings():
    dataset = EvalDataset(
        name="aime",
        path="/a.jsonl",
        input_key="input",
        label_key=None,
        tool_key="tools",
        metadata_key="metadata",
        temperature=0.0,
        top_p=0.7,
        top_k=-1,
        max_response_len=9,
        min_new_tokens=2,
        n_samples_per_eval_prompt=16,
        rm_type=None,
        custom_generate_function_path="tests.unit.engine.rollout.own.generate",
        metadata_overrides=freeze({}),
    )
    args = SimpleNamespace(rollout_stop=("x",), rollout_stop_token_ids=(), rollout_skip_special_tokens=False)
    with pytest.raises(ConfigError, match="--eval-generate-function-path of data set aime"):
        eval_task(dataset, rows(1), args=args)
    task = eval_task(replace(dataset, custom_generate_function_path=None), rows(1), args=args)
    assert task.num_samples == 16
    picked = {k: task.sampling_params[k] for k in ("temperature", "top_p", "max_new_tokens", "min_new_tokens", "stop")}
    assert picked == {"temperature": 0.0, "top_p": 0.7, "max_new_tokens": 9, "min_new_tokens": 2, "stop": ["x"]}
