# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The producer on the in-memory bus, with rows that need no model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relax.algorithms.supervised import SupervisedOptions
from relax.components.sft import ProducerSettings, SftProducer
from relax.components.sft_messages import PRODUCERS, TABLE, Rows, SftData, eval_partition, train_partition
from relax.components.sft_order import RowOrder, ShardOrder
from relax.components.sft_render import EVAL_GROUPS, EvalRows, SftRenderer
from relax.components.sft_rows import row_samples
from relax.distributed.bus.local import LocalBus
from relax.engine.sft.dataset.examples import Refused, SftExample
from relax.schedule.clock import RealClock
from relax.utils.errors import DataError, InternalError


class Numbers:
    """Row r is the tokens r, r + 1, ..., of which the last r + 1 are trained; `refused` rows are left out."""

    def __init__(self, rows: int, refused: tuple[int, ...] = ()) -> None:
        self.rows, self.refused, self.digest = rows, refused, "digest"

    def __len__(self) -> int:
        return self.rows

    def example(self, row: int) -> SftExample | Refused:
        if row in self.refused:
            return Refused("oversize", row, "rows.jsonl")
        tokens = np.arange(row, row + row + 3, dtype=np.int32)
        mask = np.asarray([0, 0] + [1] * (row + 1), np.uint8)
        return SftExample(tokens, mask, row)


def producer(bus: LocalBus, examples: Numbers, *, batch: int, shard: int = 0, shards: int = 1) -> SftProducer:
    order = RowOrder(range(len(examples)), seed=0, end=2 * len(examples))
    evals = [EvalRows("held", examples, [1, 3, 4])]
    renderer = SftRenderer(examples, order, evals, SupervisedOptions(), reduction="token_mean")

    async def run(function: Callable[..., Any], *args: Any) -> Any:
        return function(renderer, *args)

    return SftProducer(
        data=SftData(len(examples), len(examples), examples.digest, order.digest),
        renderer=renderer,
        run=run,
        settings=ProducerSettings(ShardOrder(shard, shards, batch), buffer=4, chunk=2, workers=2),
        bus=bus,
        clock=RealClock(),
    )


def test_partitions_have_the_documented_names() -> None:
    assert train_partition(7, 1, 0) == "sft_7"
    assert [train_partition(7, 2, shard) for shard in range(2)] == ["sft_7_n2_0", "sft_7_n2_1"]
    assert eval_partition(10, 3, 2) == "sft_eval_10_n3_2"  # micro-batch 2 of 3, after 10 steps


def test_a_step_is_drawn_once_and_written_where_its_ranks_take_it() -> None:
    async def run() -> None:
        bus = LocalBus(PRODUCERS)
        role = producer(bus, Numbers(6), batch=4)
        drawn = await role.draw(0, 0)
        assert [unit.group for unit in drawn.units] == [0, 1, 2, 3] and drawn.end == 4
        rows = [role._renderer.order.row(position) for position in range(4)]
        assert [unit.lengths for unit in drawn.units] == [(row + 3,) for row in rows]
        assert [unit.counted for unit in drawn.units] == [float(row + 1) for row in rows]  # supervised tokens
        await role.write(0, (Rows("sft_0", ((0, ((2, 0), (0, 0))), (1, ((1, 0), (3, 0))))),))
        found = await bus.get("sft_0", (TABLE,), (0, 1), deadline_s=1.0)
        samples = [[s.uid for s in row_samples(found[TABLE][rank].columns)] for rank in (0, 1)]
        assert samples == [[(2, 0), (0, 0)], [(1, 0), (3, 0)]]
        with pytest.raises(InternalError, match="before it was drawn, or twice"):
            await role.write(0, ())
        await role.stop()

    asyncio.run(run())


def test_shards_draw_the_units_of_one_producer() -> None:
    async def run(shards: int) -> list[str]:
        roles = [producer(LocalBus(PRODUCERS), Numbers(9), batch=4, shard=s, shards=shards) for s in range(shards)]
        digests = []
        for step in range(4):
            drawn = [await role.draw(step, step * 4 // shards) for role in roles]
            digests += [unit.digest for share in drawn for unit in share.units]
        for role in roles:
            await role.stop()
        return digests

    assert asyncio.run(run(1)) == asyncio.run(run(2)) == asyncio.run(run(4))


def test_left_out_rows_are_counted_and_the_epochs_end() -> None:
    async def run() -> None:
        role = producer(LocalBus(PRODUCERS), Numbers(6, refused=(0, 5)), batch=3)
        first, second = await role.draw(0, 0), None
        second = await role.draw(1, first.end)
        # two epochs of 6 rows, 4 of which are left: 8 rows, two steps of 3, and the third finds only 2
        third = await role.draw(2, second.end)
        assert third.exhausted and not second.exhausted
        assert sum(share.skipped.get("oversize", 0) for share in (first, second, third)) == 4
        await role.stop()

    asyncio.run(run())


def test_rows_that_are_all_left_out_end_the_run_by_name() -> None:
    async def run() -> None:
        role = producer(LocalBus(PRODUCERS), Numbers(3, refused=(0, 1, 2)), batch=2)
        with pytest.raises(DataError, match="none of 3 rows can be trained on"):
            await role.draw(0, 0)
        await role.stop()

    asyncio.run(run())


def test_evaluation_rows_have_groups_of_their_own() -> None:
    async def run() -> None:
        bus = LocalBus(PRODUCERS)
        role = producer(bus, Numbers(6, refused=(3,)), batch=2)
        (held,) = await role.eval_units()
        assert [unit.group for unit in held.units] == [EVAL_GROUPS, EVAL_GROUPS + 2]  # rows 1 and 4
        assert dict(held.skipped) == {"oversize": 1}
        await role.write_eval(Rows("sft_eval_0_n1_0", ((0, ((EVAL_GROUPS + 2, 0),)),)))
        found = await bus.get("sft_eval_0_n1_0", (TABLE,), (0,), deadline_s=1.0)
        (sample,) = row_samples(found[TABLE][0].columns)
        assert sample.tokens.tolist() == list(range(4, 11))  # row 4: 7 tokens from 4 on
        await role.stop()

    asyncio.run(run())
