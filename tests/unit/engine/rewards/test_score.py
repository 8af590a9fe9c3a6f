# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import asyncio
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

from relax.engine.rewards.score import ERROR_KEY, RewardScorer
from relax.schedule.clock import VirtualClock, run_virtual
from relax.utils.errors import ConfigError, UserCodeError
from relax.utils.imports import load_object
from relax.utils.types import Sample

HOOKS = "tests.unit.engine.rewards.hooks"


def group(count, response="1.0", label="1", **fields):
    return [Sample(group_index=5, index=i, response=response, label=label, **fields) for i in range(count)]


async def scored(samples, **options):
    scorer = RewardScorer(**options)
    try:
        await scorer.score(samples)
    finally:
        await scorer.close()
    return scorer


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", 1.0),
        ("asynchronous", 1.0),
        ("partial", 2.0),
        ("short", 0.25),
        ("async_lambda", 1.0),
        ("instance", 1.5),
        ("async_instance", 3.0),
    ],
)
async def test_every_form_of_function_is_accepted_V9(name, expected):
    samples = group(3)
    await scored(samples, custom_rm_path=f"{HOOKS}.{name}", args=SimpleNamespace(bonus=0.5))
    assert [s.reward for s in samples] == [expected] * 3


@pytest.mark.parametrize(("policy", "reward"), [("drop", math.nan), ("zero", 0.0)])
async def test_one_exception_fails_one_sample_and_keeps_its_traceback_V9(policy, reward):
    samples = group(8)
    scorer = await scored(samples, custom_rm_path=f"{HOOKS}.third_raises", on_failure=policy)
    assert [s.reward for s in samples if s.index != 3] == [1.0] * 7
    assert np.array_equal(samples[3].reward, reward, equal_nan=True)
    assert samples[3].remove_sample is (policy == "drop")
    error = samples[3].train_metadata[ERROR_KEY]
    assert "the verifier's own words" in error and "third_raises" in error
    assert scorer.counts == {"scored": 7, "errors": 1}


async def test_policy_fail_names_function_and_sample():
    with pytest.raises(UserCodeError, match=r"third_raises \(sample 5\.3\)"):
        await scored(group(8), custom_rm_path=f"{HOOKS}.third_raises", on_failure="fail")


@pytest.mark.parametrize("name", ["sleeps", "never_returns"])
async def test_a_function_that_never_returns_fails_its_sample_only_V2(name):
    samples = group(3)
    scorer = await scored(samples, custom_rm_path=f"{HOOKS}.{name}", timeout_s=0.5)
    assert [samples[0].reward, samples[2].reward] == [1.0, 1.0] and math.isnan(samples[1].reward)
    assert scorer.counts == {"scored": 2, "timeouts": 1}


@pytest.mark.parametrize("name", ["sleeps", "loses_its_connection"])
async def test_with_strict_timing_what_fails_by_time_or_connection_ends_the_run_under_every_policy(name):
    with pytest.raises(UserCodeError, match=rf"(?s){name} \(sample 5\.1\).*--deterministic.*--reward-timeout-s"):
        await scored(group(3), custom_rm_path=f"{HOOKS}.{name}", timeout_s=0.5, strict_timing=True)


async def test_with_strict_timing_a_failure_of_the_function_itself_follows_the_policy():
    samples = group(8)
    scorer = await scored(samples, custom_rm_path=f"{HOOKS}.third_raises", strict_timing=True)
    assert scorer.counts == {"scored": 7, "errors": 1}


async def test_functions_that_wait_run_at_the_same_time_V12():
    counting = load_object(f"{HOOKS}.counting", flag="--custom-rm-path")
    await scored(group(100), custom_rm_path=f"{HOOKS}.counting", max_concurrency=64)
    assert counting.most == 64


@pytest.mark.parametrize(("turns", "queued"), [(1, 3.0), (2, 1.0), (4, 0.0)])
def test_the_wait_for_a_turn_is_told_apart(turns, queued):
    """Four rewards of one second, on virtual time: the last starts after three, one or no others."""

    async def main():
        scorer = RewardScorer(custom_rm_path=f"{HOOKS}.takes_a_second", max_concurrency=turns, clock=VirtualClock())
        return await scorer.score(group(4)), await scorer.score(group(1))

    assert run_virtual(main()) == (queued, 0.0)


async def test_a_blocking_function_leaves_the_event_loop_free():
    beats = []

    async def heart():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    heart_task = asyncio.create_task(heart())
    samples = group(32)
    await scored(samples, custom_rm_path=f"{HOOKS}.blocks_briefly", max_concurrency=4)
    heart_task.cancel()
    # 32 calls of 50 ms, 4 at a time: 400 ms at least. On the loop itself there would be no beat between calls.
    assert [s.reward for s in samples] == [1.0] * 32
    assert len(beats) >= 10


async def test_scalars_of_any_kind_are_floats_and_missing_ones_follow_the_policy_G11_G12():
    samples = group(8)
    scorer = RewardScorer(custom_rm_path=f"{HOOKS}.by_index", reward_key="score", on_failure="drop")
    await scorer.score(samples)
    assert [s.get_reward("score") for s in samples[:6]] == [1.0] * 6
    assert all(type(s.reward) is float for s in samples[:5])
    assert [math.isnan(s.reward) for s in samples[6:]] == [True, True]
    assert scorer.counts == {"scored": 6, "invalid": 2}
    with pytest.raises(UserCodeError, match=r"returned str '1\.0'"):
        await scorer.score([Sample(group_index=5, index=8)])


async def test_a_dict_needs_the_reward_key_and_keeps_its_parts():
    samples = group(1)
    with pytest.raises(UserCodeError, match="--reward-key"):
        await scored(samples, custom_rm_path=f"{HOOKS}.parts")
    await scored(samples, custom_rm_path=f"{HOOKS}.parts", reward_key="score")
    assert samples[0].reward == {"score": 0.5, "format": 1.0, "note": "text"}
    assert samples[0].get_reward("score") == 0.5 and samples[0].reward_parts == {"format": 1.0}
    with pytest.raises(UserCodeError, match="'total' is not in the returned dict"):
        await scored(group(1), custom_rm_path=f"{HOOKS}.parts", reward_key="total")


async def test_a_group_function_gets_the_whole_group_once():
    samples = group(4)
    await scored(samples, custom_rm_path=f"{HOOKS}.group_ok", group_rm=True)
    assert [s.reward for s in samples] == [0.0, 1.0, 2.0, 3.0]
    samples = group(2)
    await scored(samples, custom_rm_path=f"{HOOKS}.group_dicts", group_rm=True, reward_key="score")
    assert samples[1].reward_parts == {"rank": 1.0}


async def test_a_wrong_number_of_rewards_names_function_and_lengths_G10():
    with pytest.raises(UserCodeError, match="group_short: returned 1 rewards for 4 samples"):
        await scored(group(4), custom_rm_path=f"{HOOKS}.group_short", group_rm=True)
    with pytest.raises(UserCodeError, match="returned float; --group-rm wants a list"):
        await scored(group(4), custom_rm_path=f"{HOOKS}.group_scalar", group_rm=True)


async def test_a_sample_that_has_a_reward_keeps_it_L32():
    samples = group(2)
    samples[0].reward = 0.0
    await scored(samples, custom_rm_path=f"{HOOKS}.plain")
    assert [s.reward for s in samples] == [0.0, 1.0]


async def test_the_row_s_own_type_wins_over_the_flag():
    samples = group(2, response="B", label="B")
    samples[1].metadata["rm_type"] = "multiple_choice"
    await scored(samples, rm_type="dummy")
    assert [s.reward for s in samples] == [0.0, 1.0]


async def test_built_in_dict_gives_its_score_and_leaves_its_parts():
    samples = group(1, response="Answer: 34", label="34")
    await scored(samples, rm_type="dapo")
    assert samples[0].reward == 1.0 and samples[0].reward_parts == {"acc": 1.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rm_type": "mathh"}, "--rm-type 'mathh' is unknown; known are dapo"),
        ({"rm_type": "remote_rm"}, "needs --rm-url"),
        ({"group_rm": True}, "--custom-rm-path"),
        ({"custom_rm_path": f"{HOOKS}.no_sample"}, r"is called as \(args, sample\), but takes \(args\)"),
        ({"custom_rm_path": f"{HOOKS}.nothing"}, "has no 'nothing'"),
        ({"rm_type": "math", "on_failure": "skip"}, "--reward-failure-policy"),
    ],
)
def test_wrong_settings_fail_at_load_and_name_the_flag(options, words):
    with pytest.raises(ConfigError, match=words):
        RewardScorer(**options)


async def test_no_reward_at_all_says_what_to_set():
    with pytest.raises(ConfigError, match="--rm-type"):
        await scored(group(1))
    samples = group(1)
    samples[0].metadata["rm_type"] = "nope"
    with pytest.raises(ConfigError, match=r"metadata.rm_type of sample 5.0 'nope'"):
        await scored(samples)


async def test_mathematics_is_decided_in_a_process_and_a_hostile_answer_is_counted_V1():
    answers = [r"\boxed{\frac12}", r"\boxed{9^{9^{9^9}}}", r"\boxed{0.25}", r"\boxed{\frac{2}{4}}"]
    samples = [Sample(group_index=5, index=i, response=a, label="0.5") for i, a in enumerate(answers)]
    scorer = await scored(samples, rm_type="math", num_workers=1, math_timeout_s=2.0)
    assert [samples[i].reward for i in (0, 2, 3)] == [1.0, 0.0, 1.0]
    # ended by its time limit or, where it is quicker, by its memory limit: never a silent 0
    assert math.isnan(samples[1].reward)
    assert scorer.counts["scored"] == 3 and scorer.counts["timeouts"] + scorer.counts["errors"] == 1
