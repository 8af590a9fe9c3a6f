# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What every `Bus` must do. Each claim takes a bus of `PRODUCERS` and a partition name that nobody else uses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from relax.distributed.bus.base import Block, Bus, BusConflict, PartitionDropped, UnknownTable
from relax.utils.errors import BusTimeout

PRODUCERS = {"rollout": "rollout", "ref": "reference"}


def make_block(uid: int, length: int = 5, seed: int = 0) -> Block:
    """A block whose contents follow from (uid, seed) alone."""
    rng = np.random.default_rng([uid, seed])
    return Block(
        uid,
        {
            "tokens": rng.integers(0, 50000, length, dtype=np.int32),
            "rollout_logprobs": rng.standard_normal(length).astype(np.float32),
        },
    )


def assert_same_block(got: Block, put: Block) -> None:
    assert got.uid == put.uid and got.columns.keys() == put.columns.keys()
    for name, array in put.columns.items():
        assert got.columns[name].dtype == array.dtype and got.columns[name].shape == array.shape, name
        assert got.columns[name].tobytes() == array.tobytes(), name  # bits, so that NaN payloads count
    assert got.digest == put.digest


async def dtypes_and_shapes_survive_bit_for_bit(bus: Bus, partition: str) -> None:
    nan_with_payload = np.array([0x7FC12345, 0x80000000], np.uint32).view(np.float32)  # a NaN and -0.0
    columns = {
        "int64": np.array([-(2**63), 2**63 - 1], np.int64),
        "uint8": np.arange(256, dtype=np.uint8).reshape(2, 128),
        "bool": np.array([True, False, True]),
        "float16": np.array([[1.5], [-2.5]], np.float16),
        "float64": np.array([np.pi, np.inf, 5e-324]),
        "float32": nan_with_payload,
        "empty": np.zeros((0, 7), np.int32),
        "scalar": np.array(3, np.int16),
        "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "3:pixel_values": np.ones((2, 3, 4), np.float32),
    }
    put = Block(2**62, columns)
    await bus.put(partition, "rollout", [put])
    got = (await bus.get(partition, ["rollout"], [put.uid], deadline_s=5))["rollout"][put.uid]
    assert_same_block(got, put)


async def the_same_block_again_is_a_no_op(bus: Bus, partition: str) -> None:
    await bus.put(partition, "rollout", [make_block(1), make_block(2)])
    await bus.put(partition, "rollout", [make_block(1), make_block(3)])
    assert await bus.have(partition, "rollout") == {1, 2, 3}
    got = await bus.get(partition, ["rollout"], [1, 2, 3], deadline_s=5)
    for uid in (1, 2, 3):
        assert_same_block(got["rollout"][uid], make_block(uid))


async def other_contents_for_a_uid_are_a_conflict(bus: Bus, partition: str) -> None:
    await bus.put(partition, "rollout", [make_block(1)])
    with pytest.raises(BusConflict, match=f"{partition}/rollout.*uid 1"):
        await bus.put(partition, "rollout", [make_block(2), make_block(1, seed=9)])
    with pytest.raises(BusConflict, match="uid 7"):
        await bus.put(partition, "rollout", [make_block(7), make_block(7, seed=9)])
    assert await bus.have(partition, "rollout") == {1}
    got = await bus.get(partition, ["rollout"], [1], deadline_s=5)
    assert_same_block(got["rollout"][1], make_block(1))


async def tables_join_by_uid_not_by_order(bus: Bus, partition: str) -> None:
    uids = [11, 3, 7, 5]
    await bus.put(partition, "rollout", [make_block(u) for u in uids])
    for uid in reversed(uids):
        await bus.put(partition, "ref", [make_block(uid, seed=1)])
    got = await bus.get(partition, ["rollout", "ref"], [7, 11], deadline_s=5)
    assert {table: set(rows) for table, rows in got.items()} == {"rollout": {7, 11}, "ref": {7, 11}}
    for uid in (7, 11):
        assert_same_block(got["rollout"][uid], make_block(uid))
        assert_same_block(got["ref"][uid], make_block(uid, seed=1))


async def a_get_waits_for_a_later_put(bus: Bus, partition: str) -> None:
    waiting = asyncio.create_task(bus.get(partition, ["rollout", "ref"], [1], deadline_s=20))
    await asyncio.sleep(0.02)
    await bus.put(partition, "rollout", [make_block(1)])
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await bus.put(partition, "ref", [make_block(1, seed=1)])
    assert_same_block((await waiting)["ref"][1], make_block(1, seed=1))


async def a_missed_deadline_names_partition_table_uids_and_producer(bus: Bus, partition: str) -> None:
    await bus.put(partition, "rollout", [make_block(1), make_block(2)])
    with pytest.raises(BusTimeout) as caught:
        await bus.get(partition, ["rollout", "ref"], [1, 2, 4], deadline_s=0.05)
    text = str(caught.value)
    assert f"{partition}/rollout: uids 4 (owed by role rollout)" in text
    assert f"{partition}/ref: uids 1, 2, 4 (owed by role reference)" in text
    assert "0.05 s" in text


async def an_unknown_table_fails_at_once(bus: Bus, partition: str) -> None:
    for call in (
        lambda: bus.get(partition, ["rollout", "critic"], [1], deadline_s=1e9),
        lambda: bus.put(partition, "critic", [make_block(1)]),
        lambda: bus.have(partition, "critic"),
    ):
        with pytest.raises(UnknownTable, match=r"'critic'.*ref \(by reference\)"):
            await call()


async def a_dropped_partition_refuses_late_writes_and_wakes_readers(bus: Bus, partition: str) -> None:
    await bus.put(partition, "rollout", [make_block(1)])
    waiting = asyncio.create_task(bus.get(partition, ["rollout"], [2], deadline_s=20))
    await asyncio.sleep(0.02)
    await bus.drop(partition)
    with pytest.raises(PartitionDropped, match=partition):
        await waiting
    with pytest.raises(PartitionDropped, match=partition):
        await bus.put(partition, "rollout", [make_block(2)])
    with pytest.raises(PartitionDropped, match=partition):
        await bus.put(partition, "ref", [make_block(2)])
    assert await bus.have(partition, "rollout") == frozenset()
    await bus.drop(partition)
    await bus.drop(partition + "-never-seen")
    await bus.put(partition + "-other", "rollout", [make_block(2)])
    assert await bus.have(partition + "-other", "rollout") == {2}


async def each_of_many_items_arrives_once(
    bus: Bus, partition: str, *, num_items: int = 2000, read: Callable[..., Awaitable[Any]] | None = None
) -> None:
    """A18: two producers and two consumers with random sleeps; buffers are overwritten right after each put."""
    rng = random.Random(0)
    received: list[int] = []

    async def produce(first: int) -> None:
        uids = list(range(first, num_items, 2))
        while uids:
            some, uids = uids[: (size := rng.randint(1, 64))], uids[size:]
            blocks = [make_block(uid) for uid in some]
            await bus.put(partition, "rollout", blocks)
            for block in blocks:
                for array in block.columns.values():
                    array.fill(0)
            await asyncio.sleep(rng.random() * 0.002)

    async def consume(first: int) -> None:
        uids = list(range(first, num_items, 2))
        rng.shuffle(uids)
        while uids:
            some, uids = uids[: (size := rng.randint(1, 128))], uids[size:]
            got = (await bus.get(partition, ["rollout"], some, deadline_s=60))["rollout"]
            for uid, block in got.items():
                assert_same_block(block, make_block(uid))
            received.extend(got)
            await asyncio.sleep(rng.random() * 0.002)

    await asyncio.gather(produce(0), produce(1), consume(0), consume(1))
    assert sorted(received) == list(range(num_items))


CLAIMS = (
    dtypes_and_shapes_survive_bit_for_bit,
    the_same_block_again_is_a_no_op,
    other_contents_for_a_uid_are_a_conflict,
    tables_join_by_uid_not_by_order,
    a_get_waits_for_a_later_put,
    a_missed_deadline_names_partition_table_uids_and_producer,
    an_unknown_table_fails_at_once,
    a_dropped_partition_refuses_late_writes_and_wakes_readers,
    each_of_many_items_arrives_once,
)
