# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The interval of a preference accuracy against resampling pair by pair and against the normal approximation."""

import math

import numpy as np
import pytest

from relax.algorithms.supervised.bootstrap import accuracy_interval
from relax.utils.errors import InternalError


def test_the_interval_is_that_of_resampling_pairs_one_by_one():
    scores = np.asarray([1.0] * 60 + [0.5] * 10 + [0.0] * 30)
    generator = np.random.default_rng(1)
    means = generator.choice(scores, (10_000, 100)).mean(1)
    right = np.quantile(means, [0.025, 0.975])
    # an accuracy of 100 pairs moves in steps of 0.005
    np.testing.assert_allclose(accuracy_interval(60, 10, 100), right, atol=0.0101)


def test_the_interval_of_many_pairs_is_the_normal_one():
    # p = 0.7 of 10 000 pairs: 1.96 x sqrt(0.7 x 0.3 / 10 000) = 0.00898
    low, high = accuracy_interval(7_000, 0, 10_000)
    assert (0.7 - low, high - 0.7) == (pytest.approx(0.00898, rel=0.05), pytest.approx(0.00898, rel=0.05))
    assert accuracy_interval(7_000, 0, 10_000) == (low, high)
    assert math.isclose(accuracy_interval(5, 0, 5)[0], 1.0)


def test_counts_that_cannot_be_are_an_error():
    for counts in ((0, 0, 0), (4, 2, 5)):
        with pytest.raises(InternalError, match="pairs"):
            accuracy_interval(*counts)
