# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tokens tell what they were drawn from, also where the reported log-probs agree."""

from __future__ import annotations

import numpy as np
import pytest

from relax.engine.parity.sampling import Tail, distance_from_uniform, empty_tail


def test_the_distance_of_a_hand_made_sample():
    # steps of the empirical distribution at 0.5 and 0.7: 0 -> 1/2 -> 1; the largest gap is 0.5, before the first
    assert distance_from_uniform(np.asarray([0.7, 0.5])) == pytest.approx(0.5)
    # all in the first tenth: 1 - 0.1
    assert distance_from_uniform(np.full(50, 0.1)) == pytest.approx(0.9)
    assert distance_from_uniform((np.arange(1000) + 0.5) / 1000) == pytest.approx(0.0005)


def test_an_end_that_truncation_empties_is_found():
    generator = np.random.default_rng(0)
    assert empty_tail(generator.random(3000)) is None
    assert empty_tail(np.zeros(0)) is None
    found = empty_tail(0.8 * generator.random(1000))  # nothing above 0.8, where 200 belong
    assert found == Tail(0.8, 0, pytest.approx(200.0))
    narrow = empty_tail(0.985 * generator.random(4000))  # only the last hundredth is empty
    assert narrow == Tail(0.99, 0, pytest.approx(40.0))


def test_a_shifted_tail_and_a_small_sample_are_no_truncation():
    generator = np.random.default_rng(1)
    u = generator.random(3000)
    halved = u[(u < 0.8) | (generator.random(3000) < 0.5)]  # a filter that drops half of what is unlikely
    assert empty_tail(halved) is None
    assert empty_tail(0.8 * generator.random(40)) is None
