# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which prompt each admission takes."""

from __future__ import annotations

from relax.components.messages import GroupOrder
from relax.core.prompt_order import PromptOrder
from relax.utils.rng import permutation


def draws(order: PromptOrder, count: int) -> list[tuple[int, int]]:
    return [order.next_fresh() for _ in range(count)]


def test_without_shuffle_rows_come_in_data_set_order_and_epochs_without_a_gap():
    assert draws(PromptOrder(3, seed=1, shuffle=False), 7) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0),
    ]  # fmt: skip


def test_shuffled_epochs_are_permutations_that_seed_and_epoch_alone_give():
    """R11."""
    got = draws(PromptOrder(5, seed=8, shuffle=True), 10)
    assert got == [(epoch, int(row)) for epoch in (0, 1) for row in permutation(8, epoch, 5)]
    assert got[:5] != [(0, row) for _, row in got[5:]]  # another order each epoch


def test_a_position_is_one_number():
    whole = draws(PromptOrder(4, seed=2, shuffle=True), 11)
    assert draws(PromptOrder(4, seed=2, shuffle=True, drawn=6), 5) == whole[6:]


def test_groups_put_back_keep_their_id_and_count_the_attempt():
    order = PromptOrder(4, seed=2, shuffle=False)
    order.again([GroupOrder(5, 0, 3), GroupOrder(6, 1, 0, attempt=2)])
    assert [o.group for o in order.waiting] == [5, 6]
    assert order.next_again() == GroupOrder(5, 0, 3, attempt=1)
    assert order.next_again() == GroupOrder(6, 1, 0, attempt=3)
    assert order.next_again() is None
    assert order.drawn == 0


def test_a_prompt_drawn_again_comes_before_fresh_ones_and_is_not_counted_twice():
    order = PromptOrder(4, seed=2, shuffle=False)
    draws(order, 3)
    order.draw_again(0, 1)
    assert order.postponed == ((0, 1),)
    assert draws(order, 2) == [(0, 1), (0, 3)]
    assert order.drawn == 4
