# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Randomness for users' functions."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

from relax.utils.rng import hook_generator
from relax.utils.types import Sample

ARGS = SimpleNamespace(rollout_seed=42)


def draws(group: int, index: int, seed: int = 42, turn: int = 0) -> tuple[float, ...]:
    generator = hook_generator(SimpleNamespace(rollout_seed=seed), Sample(group_index=group, index=index), turn)
    return tuple(generator.random(3).tolist())


def test_a_hook_s_randomness_depends_on_seed_sample_and_turn_and_not_on_who_draws_first():
    first = draws(3, 1)
    others = {draws(3, 0), draws(4, 1), draws(3, 1, seed=43), draws(3, 1, turn=1)}
    assert len(others) == 4 and first not in others
    assert draws(3, 1) == first


def test_numbers_are_uniform_and_those_of_neighbours_are_not_related():
    # mean of 4000 uniform numbers: 0.5, standard deviation 0.29 / sqrt(4000) = 0.0046
    values = [hook_generator(ARGS, Sample(group_index=g, index=i)).random() for g in range(500) for i in range(8)]
    assert abs(sum(values) / 4000 - 0.5) < 0.02
    pairs = sum((a - 0.5) * (b - 0.5) for a, b in itertools.pairwise(values)) / 4000
    assert abs(pairs) < 0.01  # its standard deviation is 1/12 / sqrt(4000) = 0.0013
