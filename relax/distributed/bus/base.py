# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The data bus: immutable blocks, keyed by (partition, table, uid).

A *partition* is one rollout (`train_7`), a *table* is what one role writes (`rollout`, `ref`, `advantages`), a *uid* is a
group id. Each role writes its own table; a reader joins tables by uid. The bus keeps no consumption bits and
decides nothing: the scheduler says which uids a rank takes. It is a transport that may be lost at any time and
is refilled from the trace.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from relax.utils.errors import RelaxError


class BusConflict(RelaxError):
    """A uid was put twice with different contents: rows are immutable."""


class UnknownTable(RelaxError):
    """A table was asked for that no registered producer writes."""


@dataclass(frozen=True)
class Block:
    """One row: named flat arrays of one group, with a digest of their bytes.

    Arrays keep dtype and shape bit for bit over every transport. Treat them as read-only.
    """

    uid: int
    columns: Mapping[str, np.ndarray]

    @cached_property
    def digest(self) -> str:
        """blake2b-128 over names, dtypes, shapes and bytes, independent of column order."""
        return hashlib.blake2b(encode_block(self), digest_size=16).hexdigest()


def encode_block(block: Block) -> bytes:
    """Serialise: 8-byte little-endian header length, JSON header, raw C-order bytes; columns sorted by name."""
    header, parts, offset = [], [], 0
    for name in sorted(block.columns):
        array = np.ascontiguousarray(block.columns[name])
        header.append([name, array.dtype.str, list(np.shape(block.columns[name])), offset])
        parts.append(array.tobytes())
        offset += array.nbytes
    head = json.dumps({"uid": block.uid, "columns": header}, separators=(",", ":")).encode()
    return b"".join([struct.pack("<Q", len(head)), head, *parts])


def decode_block(data: bytes | memoryview) -> Block:
    """Inverse of `encode_block`; arrays are read-only views into `data`."""
    view = memoryview(data).toreadonly()
    (size,) = struct.unpack_from("<Q", view, 0)
    head = json.loads(bytes(view[8 : 8 + size]))
    base, columns = 8 + size, {}
    for name, dtype, shape, offset in head["columns"]:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        columns[name] = np.frombuffer(view, kind, count, base + offset).reshape(shape)
    return Block(head["uid"], columns)


class Bus(Protocol):
    """Transport of blocks. Every call is bounded in time; a call that cannot finish raises `BusTimeout`."""

    async def put(self, partition: str, table: str, blocks: Iterable[Block]) -> None:
        """Store blocks. The same uid and digest again is a no-op; another digest raises `BusConflict`."""
        ...

    async def get(
        self, partition: str, tables: Iterable[str], uids: Iterable[int], *, deadline_s: float
    ) -> dict[str, dict[int, Block]]:
        """Wait until every (table, uid) exists, at most `deadline_s` seconds -> {table: {uid: block}}.

        Raises `UnknownTable` at once for a table without a registered producer, and `BusTimeout` naming
        partition, table, missing uids and the producer that owes them.
        """
        ...

    async def have(self, partition: str, table: str) -> frozenset[int]:
        """The uids that are there now."""
        ...

    async def drop(self, partition: str) -> None:
        """Forget a partition and refuse late writes to it. Dropping an unknown partition is a no-op."""
        ...

    async def close(self) -> None:
        """Release what this client holds. Idempotent."""
        ...
