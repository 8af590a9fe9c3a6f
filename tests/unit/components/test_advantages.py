# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rewards of a rollout to advantages, weights and divisors; numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from relax.algorithms.options import AlgorithmOptions
from relax.components.advantages import Advantages
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.utils.errors import UserCodeError

PRODUCERS = {"rollout": "rollout", "advantages": "advantages"}


def row(group: int, rewards, lengths, *, masks=None, removed=None) -> Block:
    lengths = np.asarray(lengths, np.int32)
    return Block(
        group,
        {
            "reward": np.asarray(rewards, np.float64),
            "response_len": lengths,
            "loss_mask": np.asarray(masks if masks is not None else np.ones(lengths.sum()), np.uint8),
            "removed": np.asarray(removed or [0] * len(lengths), np.uint8),
        },
    )


async def computed(blocks, *, group_size=2, global_batch_size=4, **options):
    bus = LocalBus(PRODUCERS)
    await bus.put("train_3", "rollout", blocks)
    role = Advantages(
        bus=bus,
        options=AlgorithmOptions(**options),
        group_size=group_size,
        global_batch_size=global_batch_size,
        deadline_s=1.0,
    )
    report = await role.compute(3, tuple(block.uid for block in blocks))
    rows = await bus.get("train_3", ("advantages",), [block.uid for block in blocks], deadline_s=1.0)
    return report, {uid: block.columns for uid, block in rows["advantages"].items()}, role


async def test_the_numbers_of_two_groups_by_hand():
    # group 5: rewards 1, 0: mean 1/2, sample std sqrt((1/4 + 1/4) / 1) = sqrt(1/2), epsilon 1e-6 beside it
    # group 9: rewards 3, 3: no variance -> exactly 0
    report, columns, role = await computed([row(5, [1, 0], [2, 1]), row(9, [3, 3], [1, 4])])
    one = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert columns[5]["advantages"] == pytest.approx([one, one, -one], rel=1e-6)
    assert columns[9]["advantages"].tolist() == [0.0] * 5
    # sample_mean: each loss token weighs 1 / loss tokens of its sample; 4 samples count
    assert columns[5]["loss_weight"].tolist() == [0.5, 0.5, 1.0]
    assert columns[9]["loss_weight"].tolist() == [1.0, 0.25, 0.25, 0.25, 0.25]
    assert report.divisors == (4.0,)
    assert report.metrics["rollout/advantage_abs/mean"] == pytest.approx((2 * one, 4.0))
    assert report.metrics["rollout/zero_std_groups_fraction"] == (1.0, 2.0)
    assert role.step == 4


async def test_each_optimizer_step_has_its_own_divisor():
    blocks = [row(1, [1, 0], [2, 1]), row(2, [0, 1], [3, 3]), row(4, [1, 0], [1, 1])]
    report, columns, _ = await computed(blocks, global_batch_size=2, loss_reduction="token_mean")
    # token_mean: every loss token weighs 1, the divisor counts them: 3, 6, 2
    assert report.divisors == (3.0, 6.0, 2.0)
    assert all((c["loss_weight"] == 1.0).all() for c in columns.values())


async def test_removed_and_unscored_samples_weigh_nothing_and_do_not_count():
    nan = math.nan
    blocks = [row(1, [1, 0, nan], [2, 1, 1]), row(2, [1, 0, 5], [1, 1, 2], removed=[0, 0, 1])]
    report, columns, _ = await computed(blocks, group_size=3, global_batch_size=6)
    assert columns[1]["loss_weight"].tolist() == [0.5, 0.5, 1.0, 0.0]
    assert columns[1]["advantages"][3] == 0.0
    assert columns[2]["loss_weight"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert report.divisors == (4.0,)


@pytest.mark.parametrize("rewards", [[0.5, math.nan], [math.inf, math.nan]])
async def test_an_invalid_reward_under_the_policy_fail_is_the_users_error_and_names_the_sample(rewards):
    with pytest.raises(
        UserCodeError, match=rf"\(sample 7\.{int(rewards[0] < 1)}\).*--invalid-reward-policy is fail"
    ) as error:
        await computed([row(3, [1, 0], [1, 1]), row(7, rewards, [1, 1])], invalid_reward="fail")
    assert error.value.exit_code == 3


async def test_observations_have_no_weight_and_are_not_counted():
    # 3 response tokens of which the middle one is an observation: 1 / 2 each for the sampled ones
    report, columns, _ = await computed([row(1, [1, 0], [3, 1], masks=[1, 0, 1, 1])], global_batch_size=2)
    assert columns[1]["loss_weight"].tolist() == [0.5, 0.0, 0.5, 1.0]
    assert report.divisors == (2.0,)


async def test_groups_that_fanned_out_stay_whole_in_their_step():
    # group 1 has four samples instead of two; a step still takes one group
    blocks = [row(1, [1, 0, 1, 0], [1, 1, 1, 1]), row(2, [1, 0], [1, 1])]
    report, _, _ = await computed(blocks, global_batch_size=2)
    assert report.divisors == (4.0, 2.0)


async def test_parts_of_a_step_give_the_columns_of_the_whole_and_their_shares_add_up_to_its_divisor():
    blocks = [row(1, [1, 0], [3, 1]), row(2, [0, 0], [2, 2], removed=[0, 1]), row(5, [2, 7], [1, 4])]
    options = {"group_size": 2, "global_batch_size": 6, "loss_reduction": "token_mean"}
    whole, expected, _ = await computed(blocks, **options)
    bus = LocalBus(PRODUCERS)
    await bus.put("train_3", "rollout", blocks)
    role = Advantages(
        bus=bus,
        options=AlgorithmOptions(loss_reduction="token_mean"),
        group_size=2,
        global_batch_size=6,
        deadline_s=1.0,
    )
    shares = [await role.compute(3, (number,), number == 5) for number in (1, 2, 5)]
    # loss tokens: 3 + 1, then 2 (the other sample is removed), then 1 + 4
    assert [share.divisors for share in shares] == [(4.0,), (2.0,), (5.0,)]
    assert whole.divisors == (11.0,)
    rows = await bus.get("train_3", ("advantages",), [1, 2, 5], deadline_s=1.0)
    for uid, block in rows["advantages"].items():
        for name, values in block.columns.items():
            assert values.tobytes() == expected[uid][name].tobytes(), (uid, name)


async def test_only_a_rollout_without_any_reward_is_an_error_not_a_part_of_it():
    nan = math.nan
    bus = LocalBus(PRODUCERS)
    await bus.put(
        "train_3", "rollout", [row(1, [nan, nan], [1, 1]), row(2, [1, 0], [1, 1]), row(3, [nan, nan], [1, 1])]
    )
    await bus.put("train_4", "rollout", [row(4, [nan, nan], [1, 1]), row(5, [nan, nan], [1, 1])])
    role = Advantages(bus=bus, options=AlgorithmOptions(), group_size=2, global_batch_size=6, deadline_s=1.0)
    for number in (1, 2, 3):
        report = await role.compute(3, (number,), number == 3)
        assert report.divisors == ((2.0,) if number == 2 else (0.0,))
    await role.compute(4, (4,), False)
    with pytest.raises(UserCodeError, match="no sample of rollout 4 has a reward"):
        await role.compute(4, (5,), True)


# ------------------------------------------------------------------ other algorithms than grpo


async def computed_with_reference(blocks, engine, reference, **options):
    """As `computed`, with log-probs of engine and reference for each group."""
    bus = LocalBus(PRODUCERS | {"ref": "reference"})
    given = [
        Block(b.uid, {**b.columns, "rollout_logprobs": np.asarray(e, np.float32)})
        for b, e in zip(blocks, engine, strict=True)
    ]
    await bus.put("train_3", "rollout", given)
    refs = [Block(b.uid, {"ref_logprobs": np.asarray(r, np.float32)}) for b, r in zip(blocks, reference, strict=True)]
    await bus.put("train_3", "ref", refs)
    role = Advantages(bus=bus, options=AlgorithmOptions(**options), group_size=2, global_batch_size=2, deadline_s=1.0)
    report = await role.compute(3, tuple(block.uid for block in blocks))
    rows = await bus.get("train_3", ("advantages",), [block.uid for block in blocks], deadline_s=1.0)
    return report, {uid: block.columns for uid, block in rows["advantages"].items()}


async def test_reinforce_plus_plus_by_hand_over_both_steps_of_a_rollout_L15():
    # kl_coef 0.5, gamma 0.5. Group 1: 3 tokens of which the second is an observation (KL of 5 nats), and 1 token.
    # Sample 0: rewards -0.5 * 1 and 2 - 0.5 * 0 -> returns -0.5 + 0.5 * 2 = 0.5 and 2; sample 1: 1 - 0.5 * 2 = 0
    # Group 2: returns of one token each: 4 and -1.5
    blocks = [row(1, [2, 1], [3, 1], masks=[1, 0, 1, 1]), row(2, [4, -1.5], [1, 1])]
    engine, reference = [[0, 0, 0, 0], [0, 0]], [[-1, -5, 0, -2], [0, 0]]
    report, columns = await computed_with_reference(
        blocks, engine, reference, advantage_estimator="reinforce_plus_plus", kl_coef=0.5, gamma=0.5
    )
    # trained tokens 0.5, 2, 0, 4, -1.5: mean 1, squares 0.25 + 1 + 1 + 9 + 6.25 = 17.5, variance 3.5
    scale = math.sqrt(3.5)
    assert columns[1]["advantages"] == pytest.approx([-0.5 / scale, 0.0, 1 / scale, -1 / scale], rel=1e-6)
    assert columns[2]["advantages"] == pytest.approx([3 / scale, -2.5 / scale], rel=1e-6)
    assert report.divisors == (2.0, 2.0)
    # of the five trained tokens: 0.5 * (1 + 0 + 2 + 0 + 0)
    assert report.metrics["rollout/kl_penalty/mean"] == (1.5, 5.0)


async def test_leave_one_out_over_uneven_groups_by_hand_G3():
    # 1, 2, 6: others' means 4, 3.5, 1.5; 5, 3: each other; 7 alone: no other
    blocks = [row(1, [1, 2, 6], [1, 1, 1]), row(2, [5, 3], [1, 1]), row(3, [7], [1])]
    report, columns, _ = await computed(blocks, advantage_estimator="rloo", old_log_probs="current")
    assert [columns[g]["advantages"].tolist() for g in (1, 2, 3)] == [[-3.0, -1.5, 4.5], [2.0, -2.0], [0.0]]
    assert report.metrics["rollout/zero_std_groups_fraction"] == (1.0, 3.0)


async def test_normalised_advantages_leave_out_who_does_not_train():
    # group 1 trains with scores 1 and 3 (no baseline), group 2 is removed and has no reward: mean 2, variance n - 1: 2
    blocks = [row(1, [1, 3], [1, 1]), row(2, [100, math.nan], [1, 1], removed=[1, 0])]
    _, columns, _ = await computed(blocks, disable_rewards_normalization=True, normalize_advantages=True)
    half = 1 / math.sqrt(2 + 1e-8)
    assert columns[1]["advantages"] == pytest.approx([-half, half], rel=1e-6)
    assert columns[2]["advantages"].tolist() == [0.0, 0.0]


async def test_equal_advantages_everywhere_normalise_to_zero_and_not_to_noise():
    blocks = [row(1, [0.1, 0.1], [2, 1])]
    options = {"disable_rewards_normalization": True, "normalize_advantages": True}
    _, columns, _ = await computed(blocks, global_batch_size=2, **options)
    assert columns[1]["advantages"].tolist() == [0.0, 0.0, 0.0]


def thirds(args, *, loss_masks):
    return [mask / 3 for mask in loss_masks]


async def test_an_own_reducer_is_asked_for_each_step_and_its_weights_hold_the_divisor():
    blocks = [row(1, [1, 0], [2, 1]), row(2, [0, 1], [1, 1], removed=[1, 0])]
    path = f"{__name__}.thirds"
    report, columns, _ = await computed(blocks, global_batch_size=2, custom_pg_loss_reducer_function_path=path)
    # the trainer divides by 2 and by 1, so the weights are 2 / 3 and 1 / 3; a removed sample has none
    assert report.divisors == (2.0, 1.0)
    assert columns[1]["policy_weight"] == pytest.approx([2 / 3] * 3)
    assert columns[2]["policy_weight"] == pytest.approx([0.0, 1 / 3])


async def test_without_advantages_only_weights_are_written():
    options = {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "a.b",
        "disable_compute_advantages_and_returns": True,
    }
    report, columns, _ = await computed([row(1, [1, 0], [2, 1])], global_batch_size=2, **options)
    assert columns[1].keys() == {"loss_weight"} and report.divisors == (2.0,)
