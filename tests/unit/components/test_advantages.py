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
