# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Token rewards and returns by hand: the KL on trained tokens alone, the outcome at the last of them."""

from __future__ import annotations

import numpy as np
import pytest

from relax.algorithms.advantages import Outcomes
from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.returns import discounted_returns, reverse_discounted_sum
from relax.algorithms.rollout_advantages import RolloutRewards, kl_penalty


def options(kl_coef: float = 0.5, gamma: float = 1.0) -> AlgorithmOptions:
    return AlgorithmOptions(advantage_estimator="reinforce_plus_plus", kl_coef=kl_coef, gamma=gamma)


def outcomes(score: float, mask: list[int], engine: list[float], ref: list[float]) -> Outcomes:
    columns = {"rollout_logprobs": [np.array(engine)], "ref_logprobs": [np.array(ref)]}
    return Outcomes(np.array([score]), [np.array(mask)], columns)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_return_is_the_discounted_sum_of_what_comes_after(gamma):
    # G_2 = 4, G_1 = 2 + gamma G_2, G_0 = 1 + gamma G_1
    expected = [1 + gamma * (2 + gamma * 4), 2 + gamma * 4, 4]
    assert reverse_discounted_sum(np.array([1.0, 2.0, 4.0]), gamma).tolist() == expected


def test_a_kl_on_a_tool_token_leaves_every_return_unchanged_L15():
    # rewards -0.5 (-1 - -2) = -0.5, then -0.5 * 0 + 3 at the last trained token; the tool's 5 nats are nowhere
    expected = [2.5, 0.0, 3.0, 0.0]
    for tool in (-5.0, 0.0, 400.0):
        found = discounted_returns(outcomes(3.0, [1, 0, 1, 0], [-1, tool, -1, tool], [-2, 0, -1, 0]), options())
        assert found.advantages[0].tolist() == expected
        assert found.returns is not None and found.returns[0].tolist() == expected


def test_a_tool_token_discounts_nothing():
    found = discounted_returns(outcomes(4.0, [1, 0, 0, 1], [0] * 4, [0] * 4), options(gamma=0.5))
    assert found.advantages[0].tolist() == [2.0, 0.0, 0.0, 4.0]


def test_a_response_without_a_trained_token_has_no_return():
    found = discounted_returns(outcomes(4.0, [0, 0], [-1, -1], [0, 0]), options())
    assert found.advantages[0].tolist() == [0.0, 0.0]


def test_an_infinity_under_the_mask_enters_nothing_P8():
    found = discounted_returns(outcomes(1.0, [1, 0], [-1, np.inf], [-1, np.inf]), options())
    assert found.advantages[0].tolist() == [1.0, 0.0]


def test_the_penalty_that_is_logged_is_the_one_that_was_taken():
    masks = [np.array([1, 0, 1]), np.array([0])]
    engine, ref = [np.array([-1.0, 9.0, -3.0]), np.array([7.0])], [np.array([-2.0, -9.0, 0.0]), np.array([0.0])]
    rewards = RolloutRewards(
        np.zeros(2), np.zeros(2), np.zeros(2, bool), masks, {"rollout_logprobs": engine, "ref_logprobs": ref}
    )
    # 0.5 * ((-1 + 2) + (-3 - 0)) over two tokens
    assert kl_penalty(rewards, 0.5) == (-1.0, 2.0)
