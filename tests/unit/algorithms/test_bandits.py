# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Expectation over every group that a bandit can give equals the closed form, float64."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers import bandits
from benchmarks.papers.enumerated import expected_gradient
from benchmarks.papers.expectations import EXPECTATIONS


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_the_expected_gradient_is_its_closed_form(name):
    case = EXPECTATIONS[name]
    found = expected_gradient(case.options, samples=case.samples, on_policy=case.on_policy, reward=case.reward)
    np.testing.assert_allclose(found, case.closed_form, rtol=0, atol=1e-6 if case.loose else 1e-12)
    assert np.abs(found).max() > 1e-3


def test_the_closed_forms_are_gradients_of_what_they_say():
    """By central differences of J and KL."""
    step = 1e-6

    def numeric(function):
        eye = np.eye(3)
        return np.array(
            [(function(bandits.THETA + step * e) - function(bandits.THETA - step * e)) / (2 * step) for e in eye]
        )

    reward = numeric(lambda theta: float(bandits.probabilities(theta) @ bandits.REWARD))
    np.testing.assert_allclose(bandits.gradient_of_reward(), reward, atol=1e-9)
    log_ref = np.log(bandits.probabilities(bandits.REFERENCE))
    kl = numeric(lambda t: float(bandits.probabilities(t) @ (np.log(bandits.probabilities(t)) - log_ref)))
    np.testing.assert_allclose(bandits.gradient_of_kl(), kl, atol=1e-9)
