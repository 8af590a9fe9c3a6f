# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.algorithms.advantages import Outcomes, broadcast, group_advantages, sample_use
from relax.algorithms.options import AlgorithmOptions


def test_group_advantage_worked_by_hand():
    # rewards 1, 0, 0, 1: mean 0.5, squared deviations 4 * 0.25 = 1, sample variance 1/3, population variance 1/4
    sample = group_advantages([1, 0, 0, 1], [7] * 4, std="sample", epsilon=0.0).advantage_S
    population = group_advantages([1, 0, 0, 1], [7] * 4, std="population", epsilon=0.0).advantage_S
    plain = group_advantages([1, 0, 0, 1], [7] * 4, std=None).advantage_S
    half = 0.5 * math.sqrt(3)
    np.testing.assert_allclose(sample, [half, -half, -half, half], rtol=0, atol=1e-15)
    assert population.tolist() == [1, -1, -1, 1]
    assert plain.tolist() == [0.5, -0.5, -0.5, 0.5]


@given(st.data())
def test_advantages_follow_the_ids_and_not_the_order_G1_G4_G6(data):
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    rewards = data.draw(st.lists(st.floats(-5, 5), min_size=len(groups), max_size=len(groups)))
    order = data.draw(st.permutations(range(len(groups))))
    straight = group_advantages(rewards, groups, std="sample").advantage_S
    moved = group_advantages([rewards[i] for i in order], [groups[i] for i in order], std="sample").advantage_S
    assert moved.tolist() == straight[list(order)].tolist()  # to the last bit


def test_uneven_groups_each_use_their_own_statistics_G3():
    # sizes 1, 2 and 3; sample std of [0, 2] is sqrt(2), of [0, 0, 3] is sqrt(3)
    result = group_advantages([5, 0, 2, 0, 0, 3], [1, 2, 2, 3, 3, 3], std="sample", epsilon=0.0)
    r2, r3 = 1 / math.sqrt(2), 1 / math.sqrt(3)
    np.testing.assert_allclose(result.advantage_S, [0, -r2, r2, -r3, -r3, 2 * r3], rtol=0, atol=1e-15)


@pytest.mark.parametrize("value", [0.1, 1.0, 1e9, -7.3])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_zero_variance_is_exactly_zero_L26(value, size):
    result = group_advantages([value] * size, [0] * size, std="sample")
    assert result.advantage_S.tolist() == [0.0] * size
    assert not result.informative_S.any() and result.valid_S.all()


def test_group_of_one_is_zero_or_its_reward_and_never_nan_G13_L31():
    assert group_advantages([0.7], [3], std="sample").advantage_S.tolist() == [0.0]
    kept = group_advantages([0.7], [3], std="sample", group_of_one="reward")
    assert kept.advantage_S.tolist() == [0.7] and kept.informative_S.tolist() == [True]


def test_invalid_rewards_follow_the_named_policy_G11_L32():
    rewards = [1.0, None, 0.0, math.nan]
    dropped = group_advantages(rewards, [0] * 4, std=None, invalid="drop")
    # statistics over [1, 0] only: mean 0.5
    assert dropped.advantage_S.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert dropped.valid_S.tolist() == [True, False, True, False]
    zeroed = group_advantages(rewards, [0] * 4, std=None, invalid="zero")
    # statistics over [1, 0, 0, 0]: mean 0.25
    assert zeroed.advantage_S.tolist() == [0.75, -0.25, -0.25, -0.25]
    with pytest.raises(ValueError, match="None at place 1"):
        group_advantages(rewards, [0] * 4, std=None, invalid="fail")


def test_a_group_with_no_usable_reward_has_no_advantage_and_trains_nothing():
    result = group_advantages([None, math.inf], [0, 0], std="sample")
    assert result.advantage_S.tolist() == [0, 0] and not result.valid_S.any()


@given(st.floats(0.5, 100), st.floats(-100, 100))
def test_an_affine_change_of_rewards_changes_nothing_up_to_epsilon_L28(scale, shift):
    rewards = np.array([0.0, 1e-3, 0.0, 2e-3])
    # sample std of the rewards is 9.6e-4, so epsilon 1e-6 moves a value by about 1e-3 of itself
    straight = group_advantages(rewards, [0] * 4, std="sample", epsilon=1e-6).advantage_S
    moved = group_advantages(scale * rewards + shift, [0] * 4, std="sample", epsilon=1e-6).advantage_S
    np.testing.assert_allclose(moved, straight, rtol=3e-3, atol=1e-9)


def test_reward_without_baseline_is_the_reward():
    result = group_advantages([2.0, 2.0], [0, 0], std="sample", baseline="none")
    assert result.advantage_S.tolist() == [2.0, 2.0] and result.informative_S.all()


def test_zero_variance_policies_decide_who_trains_and_who_counts():
    result = group_advantages([1, 1, 0, 1, None], [0, 0, 1, 1, 1], std=None)
    removed = [False, False, False, True, False]
    keep = sample_use(result, removed, zero_variance="keep")
    assert keep.keep_S.tolist() == [True, True, True, False, False] and not keep.silent_S.any()
    count = sample_use(result, removed, zero_variance="count_only")
    assert count.keep_S.tolist() == keep.keep_S.tolist() and count.silent_S.tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    drop = sample_use(result, removed, zero_variance="drop")
    assert drop.keep_S.tolist() == [False, False, True, False, False]
    with pytest.raises(ValueError, match="keep, count_only, drop"):
        sample_use(result, removed, zero_variance="skip")


def test_broadcast_repeats_over_each_response():
    masks = [np.ones(2), np.ones(0), np.array([0])]
    found = broadcast(Outcomes(np.array([0.5, -1.0, 2.0]), masks, {}), AlgorithmOptions())
    assert [row.tolist() for row in found.advantages] == [[0.5, 0.5], [], [2.0]]
    assert found.returns is None


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    # rewards 1, 2, 6: the others' means are 4, 3.5, 1.5; a group of two and a group of one beside it
    result = group_advantages([1.0, 2.0, 6.0, 5.0, 3.0, 9.0], [0, 0, 0, 1, 1, 2], std=None, baseline="leave_one_out")
    assert result.advantage_S == pytest.approx([-3.0, -1.5, 4.5, 2.0, -2.0, 0.0], abs=1e-12)
    assert result.informative_S.tolist() == [True] * 5 + [False]


def test_leave_one_out_leaves_an_invalid_reward_out_of_the_others_mean():
    # 1 and 3 are each other's only other
    result = group_advantages([1.0, None, 3.0], [0, 0, 0], std=None, baseline="leave_one_out")
    assert result.advantage_S.tolist() == [-2.0, 0.0, 2.0] and result.valid_S.tolist() == [True, False, True]


def test_the_epsilon_stands_beside_the_standard_deviation():
    # rewards 1, 0: sample std sqrt(1/2); usual epsilon 1e-6
    usual = group_advantages([1.0, 0.0], [0, 0], std="sample").advantage_S
    assert usual[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6), rel=1e-12)
    assert group_advantages([1.0, 0.0], [0, 0], std="population", epsilon=0.5).advantage_S.tolist() == [0.5, -0.5]
