# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The stream of rows, its shards, and what is rendered ahead of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from relax.components.sft_order import RowOrder, ShardOrder
from relax.components.sft_prefetch import Prefetcher


def test_every_epoch_has_each_training_row_once_in_another_order() -> None:
    order = RowOrder([1, 3, 4, 7, 9, 11, 12], seed=5)
    epochs = [[order.row(epoch * 7 + place) for place in range(7)] for epoch in range(3)]
    assert all(sorted(epoch) == [1, 3, 4, 7, 9, 11, 12] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = RowOrder([1, 3, 4, 7, 9, 11, 12], seed=5)
    assert [again.row(place) for place in reversed(range(21))] == [row for e in epochs for row in e][::-1]


def test_the_digest_tells_seeds_and_hold_outs_apart() -> None:
    digests = {RowOrder(rows, seed=seed).digest for rows in ([0, 1, 2], [0, 1, 3]) for seed in (0, 1)}
    assert len(digests) == 4


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_shards_share_the_positions_of_each_step(shards: int) -> None:
    orders = [ShardOrder(shard, shards, batch=8) for shard in range(shards)]
    for step in range(3):
        counts = [order.count(step * 8) for order in orders]
        positions = [o.position(c + i) for o, c in zip(orders, counts, strict=True) for i in range(o.size)]
        assert positions == list(range(step * 8, step * 8 + 8))
        assert orders[0].reached(counts[0] + orders[0].size) == (step + 1) * 8


@pytest.mark.parametrize(("buffer", "chunk", "workers"), [(0, 1, 1), (3, 2, 2), (100, 7, 4), (5, 32, 1)])
def test_items_come_in_order_whatever_is_made_ahead(buffer: int, chunk: int, workers: int) -> None:
    running = most = 0

    async def render(numbers: Sequence[int]) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (numbers[0] % 3))  # later chunks may end first
        running -= 1
        return [number * number for number in numbers]

    async def run() -> list[int]:
        ahead = Prefetcher(render, buffer=buffer, chunk=chunk, workers=workers, end=25)
        found = [await ahead.get(number) for number in range(5, 25)]
        await ahead.close()
        return found

    assert asyncio.run(run()) == [number * number for number in range(5, 25)]
    assert most <= workers


def test_a_row_that_fails_ahead_is_told_when_it_is_its_turn() -> None:
    async def render(numbers: Sequence[int]) -> list[int]:
        if 4 in numbers:
            raise ValueError("row 4 is broken")
        return list(numbers)

    async def run() -> None:
        ahead = Prefetcher(render, buffer=10, chunk=2, workers=2, end=8)
        assert [await ahead.get(number) for number in range(4)] == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="row 4 is broken"):
            await ahead.get(4)
        await ahead.close()

    asyncio.run(run())
