# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Micro-batches of whole units, dealt to ranks."""

from __future__ import annotations

import numpy as np
import pytest

from relax.schedule.batch_plan import plan_units


def singles(*lengths: int) -> list[list[tuple[int, int]]]:
    return [[(place, length)] for place, length in enumerate(lengths)]


def test_balanced_micro_batches_are_few_and_equally_full() -> None:
    # 24 tokens in micro-batches of 12 are two at least. Longest first to the emptier one:
    # 7 | -, 7 | 6, 7 | 6 5, 7 4 | 6 5: both hold 11, and the 2 makes 13 > 12, so they are three.
    # Three: 7, 6, 5; 4 to the 5 (9); 2 to the 6 (8): 9, 8, 7.
    assert plan_units(singles(7, 2, 6, 4, 5), dp_size=1, max_tokens=12, balance=True) == (((3, 4), (1, 2), (0,)),)


def test_next_fit_keeps_the_order_and_pads_ranks() -> None:
    plan = plan_units(singles(5, 6, 4, 9, 1), dp_size=2, max_tokens=10, balance=False)
    assert plan == (((0,), (3, 4)), ((1, 2), ()))


def test_the_fullest_micro_batches_run_beside_each_other() -> None:
    ranks = plan_units(singles(8, 7, 3, 2), dp_size=2, max_tokens=8, balance=True)
    assert ranks == (((0,), (2,)), ((1,), (3,)))


def test_a_pair_stays_together_and_a_long_unit_is_alone() -> None:
    pairs = [
        [((group, place), length) for place, length in enumerate(sides)]
        for group, sides in enumerate([(9, 8), (3, 4), (2, 2)])
    ]
    for balance in (True, False):
        (micros,) = plan_units(pairs, dp_size=1, max_tokens=12, balance=balance)
        assert set(micros) == {((0, 0), (0, 1)), ((1, 0), (1, 1), (2, 0), (2, 1))}


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("dp_size", [1, 3])
def test_every_unit_is_planned_once_within_the_limit(balance: bool, dp_size: int) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        lengths = random.integers(1, 40, size=random.integers(1, 30)).tolist()
        ranks = plan_units(singles(*lengths), dp_size=dp_size, max_tokens=32, balance=balance)
        assert sorted(uid for micros in ranks for micro in micros for uid in micro) == list(range(len(lengths)))
        assert len({len(micros) for micros in ranks}) == 1
        for micro in (micro for micros in ranks for micro in micros):
            assert sum(lengths[uid] for uid in micro) <= 32 or len(micro) == 1
