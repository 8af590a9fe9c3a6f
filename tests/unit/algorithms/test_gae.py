# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Advantages over tokens, by hand and against the definition as a sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from relax.algorithms.gae import gae, token_rewards


def one(rewards, values, sampled=None, **options):
    sampled = np.ones(len(values)) if sampled is None else np.asarray(sampled)
    found = gae([np.asarray(rewards, float)], [np.asarray(values, float)], [sampled], **options)
    return found.advantages[0].tolist(), found.returns[0].tolist()


def test_three_tokens_by_hand():
    # gamma 1/2, lambda 1/2: delta_2 = 1 - 3 = -2; delta_1 = 0 + 3/2 - 2 = -1/2; delta_0 = 0 + 2/2 - 1 = 0
    # A_2 = -2; A_1 = -1/2 + (1/4)(-2) = -1; A_0 = 0 + (1/4)(-1) = -1/4
    advantages, returns = one([0, 0, 1], [1, 2, 3], gamma=0.5, lambd=0.5)
    assert advantages == [-0.25, -1.0, -2.0]
    assert returns == [0.75, 1.0, 1.0]


def test_lambda_one_is_the_reward_to_go_less_the_value_and_lambda_zero_the_one_step_error():
    rewards, values, gamma = [0.5, -1.0, 2.0, 0.25], [0.1, 0.2, -0.3, 0.4], 0.9
    advantages, returns = one(rewards, values, gamma=gamma, lambd=1.0)
    to_go = [math.fsum(gamma ** (j - k) * rewards[j] for j in range(k, 4)) for k in range(4)]
    assert returns == pytest.approx(to_go, abs=1e-15)
    assert advantages == pytest.approx([g - v for g, v in zip(to_go, values, strict=True)], abs=1e-15)
    after = [*values[1:], 0.0]
    errors = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    assert one(rewards, values, gamma=gamma, lambd=0.0)[0] == pytest.approx(errors, abs=1e-15)


def test_the_recursion_equals_the_sum_of_discounted_errors_for_samples_of_all_lengths():
    generator = np.random.default_rng(3)
    lengths = [0, 1, 7, 2, 40]
    rewards = [generator.normal(size=n) for n in lengths]
    values = [generator.normal(size=n) for n in lengths]
    found = gae(rewards, values, [np.ones(n) for n in lengths], gamma=0.97, lambd=0.9)
    for r, v, advantages in zip(rewards, values, found.advantages, strict=True):
        errors = r + 0.97 * np.append(v[1:], 0.0)[: len(v)] - v
        right = [math.fsum((0.97 * 0.9) ** (j - k) * errors[j] for j in range(k, len(v))) for k in range(len(v))]
        assert advantages == pytest.approx(right, abs=1e-12)


def test_an_observation_is_no_step_of_the_chain():
    # The same three sampled tokens with an observation of two tokens between them, whose numbers must not be read.
    plain = one([0, 0, 1], [1, 2, 3], gamma=0.5, lambd=0.5)
    advantages, returns = one([0, 9, 9, 0, 1], [1, math.nan, 7, 2, 3], [1, 0, 0, 1, 1], gamma=0.5, lambd=0.5)
    assert [advantages[k] for k in (0, 3, 4)] == plain[0]
    assert [returns[k] for k in (0, 3, 4)] == plain[1]
    assert advantages[1:3] == [0.0, 0.0]
    assert returns[1:3] == [0.0, 0.0]


def test_a_sample_is_not_changed_by_its_neighbours():
    alone = one([0.0, 1.0], [0.3, 0.6], gamma=0.9, lambd=0.8)
    both = gae(
        [np.array([0.0, 1.0]), np.ones(9)], [np.array([0.3, 0.6]), np.ones(9)], [np.ones(2), np.ones(9)],
        gamma=0.9, lambd=0.8,
    )  # fmt: skip
    assert both.advantages[0].tolist() == alone[0]


def test_a_sample_without_a_sampled_token_gets_nothing():
    assert one([1.0, 1.0], [5.0, 5.0], [0, 0]) == ([0.0, 0.0], [0.0, 0.0])
    empty = gae([], [], [])
    assert empty.advantages == []


def test_right_values_have_no_advantage():
    # with V_k = gamma^(n-1-k) * reward the one-step errors are 0
    gamma = 0.5
    assert one([0, 0, 4], [gamma**2 * 4, gamma * 4, 4], gamma=gamma, lambd=0.7)[0] == [0.0, 0.0, 0.0]


def test_the_reward_lands_on_the_last_sampled_token_and_the_kl_on_each():
    rewards = token_rewards([3.0], [np.array([1, 0, 1, 0])], kl=[np.array([0.5, 9.0, -1.0, 9.0])], kl_coef=0.1)
    assert rewards[0] == pytest.approx([-0.05, 0.0, 3.0 + 0.1, 0.0], abs=1e-15)
    assert token_rewards([2.0], [np.zeros(2)])[0].tolist() == [0.0, 0.0]


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="sample 0: 2 rewards, 3 values, 3 tokens"):
        gae([np.zeros(2)], [np.zeros(3)], [np.ones(3)])
    with pytest.raises(ValueError, match="sample 0: a critic's value is not a finite number"):
        gae([np.zeros(1)], [np.array([math.inf])], [np.ones(1)])
