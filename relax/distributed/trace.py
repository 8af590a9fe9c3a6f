# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The trace: every finished group, written once, before the journal says so.

`{run_dir}/trace/{name}.safetensors` holds one block a group, back to back; each block is a whole safetensors file of
its own. The journal's `completed` event says where a block lies, how long it is and what its digest is, so the bus can
be refilled from here and any number of a curve recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from relax.distributed.bus.base import Block, decode_block, encode_block
from relax.utils.errors import DataError


@dataclass(frozen=True)
class TraceEntry:
    file: str  # name below the trace folder
    offset: int
    length: int
    digest: str


class TraceWriter:
    """Appends blocks to one open file; `roll(name)` starts the next. Not shared between processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = ""
        self._file: BinaryIO | None = None

    def roll(self, name: str) -> None:
        """Write what follows to `{name}.safetensors`; an existing file is continued, never overwritten."""
        if name != self._name:
            self.close()
            self._name = name
            self._file = open(self._folder / f"{name}.safetensors", "ab")  # noqa: SIM115 - closed by close()

    def write(self, block: Block) -> TraceEntry:
        if self._file is None:
            raise ValueError("roll() names the file before the first write")
        data, offset = encode_block(block), self._file.tell()
        self._file.write(data)
        self._file.flush()  # the journal may only name bytes that a reader can see
        return TraceEntry(f"{self._name}.safetensors", offset, len(data), block.digest)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_block(folder: Path, entry: TraceEntry) -> Block:
    """One group of the trace; raises DataError when its bytes are not what the journal says."""
    with open(folder / entry.file, "rb") as file:
        file.seek(entry.offset)
        data = file.read(entry.length)
    where = f"{folder / entry.file}@{entry.offset}"
    if len(data) != entry.length:
        raise DataError(f"the trace ends after {len(data)} of {entry.length} bytes", where=where)
    block = decode_block(data)
    if block.digest != entry.digest:
        raise DataError(f"digest {block.digest} differs from the journal's {entry.digest}", where=where)
    return block
