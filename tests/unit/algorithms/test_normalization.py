# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Advantages of a rollout to mean 0 and variance 1, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.algorithms.normalization import normalize

ONE = np.ones(1)


def rows(*values: float) -> list[np.ndarray]:
    return [np.array([value]) for value in values]


def test_whiten_divides_by_the_sample_variance_and_adds_to_it():
    # 1, 3: mean 2, variance with n - 1: 2
    found = normalize(rows(1.0, 3.0), [ONE, ONE], [True, True], "whiten")
    half = 1 / math.sqrt(2.0 + 1e-8)
    assert [float(v[0]) for v in found] == pytest.approx([-half, half], abs=1e-15)


def test_token_global_divides_by_the_variance_of_the_tokens_with_a_floor():
    # 1, 3: variance with n: 1
    assert [float(v[0]) for v in normalize(rows(1.0, 3.0), [ONE, ONE], [True, True], "token_global")] == [-1.0, 1.0]
    # 0 and 1e-5: variance 2.5e-11 is below the floor 1e-8, so the scale is 1e-4
    found = normalize(rows(0.0, 1e-5), [ONE, ONE], [True, True], "token_global")
    assert [float(v[0]) for v in found] == pytest.approx([-0.05, 0.05], rel=1e-9)


def test_tokens_count_one_by_one_and_what_is_not_trained_counts_nothing():
    # trained tokens 0, 0, 3 of the first two samples: mean 1, variance with n: (1 + 1 + 4) / 3 = 2
    advantages = [np.array([0.0, 0.0, 99.0]), np.array([3.0, -99.0]), np.array([7.0])]
    masks = [np.array([1, 1, 0]), np.array([1, 0]), np.array([1])]
    found = normalize(advantages, masks, [True, True, False], "token_global")
    root = math.sqrt(2.0)
    assert found[0] == pytest.approx([-1 / root, -1 / root, 0.0])
    assert found[1] == pytest.approx([2 / root, 0.0]) and found[2].tolist() == [0.0]


def test_equal_advantages_and_no_advantages_are_zero():
    for how in ("whiten", "token_global"):
        assert [v.tolist() for v in normalize(rows(0.1, 0.1, 0.1), [ONE] * 3, [True] * 3, how)] == [[0.0]] * 3
        assert [v.tolist() for v in normalize(rows(4.0), [np.zeros(1)], [True], how)] == [[0.0]]
        assert normalize([], [], [], how) == []


@given(st.permutations(range(6)))
def test_the_order_of_samples_changes_no_bit(order):
    values = rows(0.1, 0.7, -2.3, 1e6, 3.3, -1e-3)
    straight = normalize(values, [ONE] * 6, [True] * 6, "whiten")
    moved = normalize([values[i] for i in order], [ONE] * 6, [True] * 6, "whiten")
    assert [float(v[0]) for v in moved] == [float(straight[i][0]) for i in order]
