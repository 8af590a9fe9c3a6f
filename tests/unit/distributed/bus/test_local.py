# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from __future__ import annotations

import asyncio

import numpy as np
import pytest

from relax.distributed.bus.base import Block, PartitionDropped
from relax.distributed.bus.local import LocalBus
from relax.schedule.clock import run_virtual
from relax.utils.errors import BusTimeout, InternalError
from tests.unit.distributed.bus.conformance import CLAIMS, PRODUCERS, make_block


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
async def test_local_bus_conforms(claim) -> None:
    await claim(LocalBus(PRODUCERS), "train_7")


async def test_a_reader_cannot_change_what_another_reader_sees() -> None:
    bus = LocalBus(PRODUCERS)
    await bus.put("p", "rollout", [make_block(1)])
    got = (await bus.get("p", ["rollout"], [1], deadline_s=1))["rollout"][1]
    with pytest.raises(ValueError, match="read-only"):
        got.columns["tokens"][0] = 1


async def test_a_view_of_a_writable_buffer_is_copied_even_when_the_view_is_read_only() -> None:
    bus, buffer = LocalBus(PRODUCERS), np.arange(4)
    view = buffer[:]
    view.flags.writeable = False
    await bus.put("p", "rollout", [Block(1, {"x": view})])
    buffer[:] = 0
    got = (await bus.get("p", ["rollout"], [1], deadline_s=1))["rollout"][1]
    assert got.columns["x"].tolist() == [0, 1, 2, 3]


async def test_an_array_that_owns_read_only_bytes_is_shared_not_copied() -> None:
    bus, array = LocalBus(PRODUCERS), np.arange(4)
    array.flags.writeable = False
    await bus.put("p", "rollout", [Block(1, {"x": array})])
    got = (await bus.get("p", ["rollout"], [1], deadline_s=1))["rollout"][1]
    assert got.columns["x"] is array


async def test_a_column_that_is_not_plain_numbers_is_refused_by_name() -> None:
    for array in (np.array([{}], object), np.array(["a"]), np.array([1], ">i4")):
        with pytest.raises(InternalError, match="uid 1: column 'who'"):
            await LocalBus(PRODUCERS).put("p", "rollout", [Block(1, {"who": array})])


async def test_close_ends_a_wait() -> None:
    bus = LocalBus(PRODUCERS)
    waiting = asyncio.create_task(bus.get("p", ["rollout"], [1], deadline_s=60))
    await asyncio.sleep(0)
    await bus.close()
    with pytest.raises(PartitionDropped, match="partition p "):
        await waiting


def test_a_deadline_passes_in_virtual_time() -> None:
    """A22: a producer that ends with 3 of 4 items gives its consumer a clear end, an hour later by the clock."""

    async def main() -> float:
        bus, loop = LocalBus(PRODUCERS), asyncio.get_running_loop()
        await bus.put("p", "rollout", [make_block(uid) for uid in range(3)])
        with pytest.raises(BusTimeout, match="uids 3 "):
            await bus.get("p", ["rollout"], range(4), deadline_s=3600)
        return loop.time()

    assert run_virtual(main()) == 3600.0


async def test_a_long_list_of_missing_uids_is_cut() -> None:
    with pytest.raises(BusTimeout, match=r"uids 0, 1, 2, 3, 4, 5, 6, 7 and 92 more \(owed"):
        await LocalBus(PRODUCERS).get("p", ["rollout"], range(100), deadline_s=0)
