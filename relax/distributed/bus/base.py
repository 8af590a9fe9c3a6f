# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The data bus: immutable blocks, keyed by (partition, table, uid).

A *partition* is one rollout (`train_7`), a *table* is what one role writes (`rollout`, `ref`, `advantages`), a *uid*
is a group id. Each role writes its own table; a reader joins tables by uid. The bus keeps no consumption bits and
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


class PartitionDropped(RelaxError):
    """A late write or read of a partition that has been dropped."""


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


SAFETENSORS_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_DTYPE_NAMES = {text: name for name, text in SAFETENSORS_DTYPES.items()}


def encode_block(block: Block) -> bytes:
    """Serialise as one safetensors file, columns sorted by name, the uid in `__metadata__`: any tool reads it."""
    header: dict[str, object] = {"__metadata__": {"uid": str(block.uid)}}
    parts, offset = [], 0
    for name in sorted(block.columns):
        array = np.asarray(block.columns[name])
        raw = array.tobytes()
        header[name] = {
            "dtype": _DTYPE_NAMES[array.dtype.newbyteorder("<").str],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        parts.append(raw)
        offset += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the format keeps data 8-byte aligned
    return b"".join([struct.pack("<Q", len(head)), head, *parts])


def decode_block(data: bytes | memoryview) -> Block:
    """Inverse of `encode_block`; arrays are read-only views into `data`."""
    view = memoryview(data).toreadonly()
    (size,) = struct.unpack_from("<Q", view, 0)
    header = json.loads(bytes(view[8 : 8 + size]))
    uid = int(header.pop("__metadata__")["uid"])
    columns = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        dtype = np.dtype(SAFETENSORS_DTYPES[entry["dtype"]])
        flat = np.frombuffer(view, dtype, (end - start) // dtype.itemsize, 8 + size + start)
        columns[name] = flat.reshape(entry["shape"])
    return Block(uid, columns)


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
        """Forget a partition; late writes to it and waits on it end with `PartitionDropped`.

        Dropping an unknown partition is a no-op.
        """
        ...

    async def close(self) -> None:
        """Release what this client holds. Idempotent."""
        ...
