# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The data bus of one process: the unit-test, inline and simulation twin of the TransferQueue bus.

Waiting uses the running loop's timers only, so it follows a virtual clock. All calls come from one event loop at a
time; nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from relax.distributed.bus.base import Block, BusConflict
from relax.distributed.bus.checks import check_block, describe_missing, dropped, known_table
from relax.utils.errors import BusTimeout


class LocalBus:
    """Blocks in a dict. A writable array is copied once at `put`; a read-only one is shared.

    `producers` maps each table to the role that writes it; other tables raise `UnknownTable`.
    """

    def __init__(self, producers: Mapping[str, str]) -> None:
        self._producers = dict(producers)
        self._blocks: defaultdict[str, defaultdict[str, dict[int, Block]]] = defaultdict(lambda: defaultdict(dict))
        self._dropped: set[str] = set()
        self._waiters: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    async def put(self, partition: str, table: str, blocks: Iterable[Block]) -> None:
        """Store blocks; all of them or, on a conflict, none."""
        known_table(self._producers, table)
        self._check_open(partition)
        rows, new = self._blocks[partition][table], {}
        for block in blocks:
            check_block(block)
            old = rows.get(block.uid) or new.get(block.uid)
            if old is None:
                new[block.uid] = freeze(block)
            elif old.digest != block.digest:
                raise BusConflict(f"{partition}/{table}: uid {block.uid} was put with other contents before")
        rows.update(new)
        self._wake(partition)

    async def get(
        self, partition: str, tables: Iterable[str], uids: Iterable[int], *, deadline_s: float
    ) -> dict[str, dict[int, Block]]:
        """Wait for every (table, uid); the arrays are shared with the store and read-only."""
        tables, uids = tuple(tables), tuple(uids)
        for table in tables:
            known_table(self._producers, table)
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        while missing := self._missing(partition, tables, uids):
            self._check_open(partition)
            left = end - loop.time()
            if left <= 0:
                raise BusTimeout(describe_missing(partition, missing, self._producers, deadline_s))
            await self._changed(partition, left)
        store = self._blocks[partition]
        return {table: {uid: store[table][uid] for uid in uids} for table in tables}

    async def have(self, partition: str, table: str) -> frozenset[int]:
        known_table(self._producers, table)
        if partition not in self._blocks:
            return frozenset()
        return frozenset(self._blocks[partition][table])

    async def drop(self, partition: str) -> None:
        if partition not in self._blocks:
            return
        del self._blocks[partition]
        self._dropped.add(partition)
        self._wake(partition)

    async def close(self) -> None:
        """Forget every block and end every wait with `PartitionDropped`."""
        self._dropped.update(self._blocks, self._waiters)
        self._blocks.clear()
        for partition in tuple(self._waiters):
            self._wake(partition)

    def _missing(self, partition: str, tables: tuple[str, ...], uids: tuple[int, ...]) -> dict[str, list[int]]:
        store = self._blocks.get(partition, {})
        missing = {table: [uid for uid in uids if uid not in store.get(table, ())] for table in tables}
        return {table: lost for table, lost in missing.items() if lost}

    def _check_open(self, partition: str) -> None:
        if partition in self._dropped:
            raise dropped(partition)

    async def _changed(self, partition: str, timeout_s: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[partition].add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            self._waiters[partition].discard(waiter)
            if not self._waiters[partition]:
                del self._waiters[partition]

    def _wake(self, partition: str) -> None:
        for waiter in self._waiters.get(partition, ()):
            if not waiter.done():
                waiter.set_result(None)


def freeze(block: Block) -> Block:
    """The block with read-only arrays: a writable array is copied, so a reused buffer cannot reach a reader."""
    return Block(block.uid, {name: _read_only(array) for name, array in block.columns.items()})


def _read_only(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if array.flags.writeable or owner.flags.writeable:
        array = array.copy(order="C")
        array.flags.writeable = False
    return array
