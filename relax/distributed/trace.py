# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The trace: every finished group, written once, before the journal says so.

`{run_dir}/trace/{name}.safetensors` holds one block a group, back to back; each block is a whole safetensors file of
its own. The journal's `completed` event says where a block lies, how long it is and what its digest is, so the bus can
be refilled from here and any number of a curve recomputed. It also has the crc32 of each column, of the header and of
the notes, so damage has a name: see `find_damage`.

`{name}.jsonl` beside it holds what numbers alone don't say, one line a block: `{"group", "digest", ...notes}`, the
notes being the rollout role's (texts, timings). It is what a resumed run writes results from.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from relax.distributed.bus.base import SAFETENSORS_DTYPES, Block, decode_block, encode_block
from relax.utils.errors import DataError
from relax.utils.jsonl import JsonlWriter, read_jsonl


@dataclass(frozen=True)
class TraceEntry:
    file: str  # name below the trace folder
    offset: int
    length: int
    digest: str
    columns: Mapping[str, str] = field(default_factory=dict)  # {column, HEADER, NOTES: crc32 in hex}; {}: an older run


# As `TraceEntry.columns` calls what is no column: the safetensors header of a block, and its line of notes.
HEADER, NOTES = "(header)", "(notes)"


class TraceWriter:
    """Appends blocks to one open file; `roll(name)` starts the next. Not shared between processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._name = ""
        self._file: BinaryIO | None = None
        self._notes: JsonlWriter | None = None

    def roll(self, name: str) -> None:
        """Write what follows to `{name}.safetensors`; an existing file is continued, never overwritten."""
        if name != self._name:
            self.close()
            self._name = name
            self._file = open(self.folder / f"{name}.safetensors", "ab")  # noqa: SIM115 - closed by close()
            self._notes = JsonlWriter(self.folder / f"{name}.jsonl")

    def write(self, block: Block, notes: Mapping[str, Any] | None = None) -> TraceEntry:
        if self._file is None or self._notes is None:
            raise ValueError("roll() names the file before the first write")
        line = self._notes.write({"group": block.uid, "digest": block.digest, **(notes or {})})
        self._notes.flush()
        data, offset = encode_block(block), self._file.tell()
        self._file.write(data)
        self._file.flush()  # the journal may only name bytes that a reader can see
        sums = {**_checksums(data), NOTES: f"{zlib.crc32(line.encode()):08x}"}
        return TraceEntry(f"{self._name}.safetensors", offset, len(data), block.digest, sums)

    def close(self) -> None:
        if self._file is not None and self._notes is not None:
            self._file.close()
            self._notes.close()
            self._file = self._notes = None


def read_block(folder: Path, entry: TraceEntry) -> Block:
    """One group of the trace; raises DataError when its bytes are not what the journal says."""
    with open(folder / entry.file, "rb") as file:
        file.seek(entry.offset)
        data = file.read(entry.length)
    where = f"{folder / entry.file}@{entry.offset}"
    if len(data) != entry.length:
        raise DataError(f"the trace ends after {len(data)} of {entry.length} bytes", where=where)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    if digest != entry.digest:  # before decoding, which damaged bytes would fail in their own ways
        raise DataError(f"digest {digest} differs from the journal's {entry.digest}", where=where)
    return decode_block(data)


# ---------------------------------------------------------------------- damage


@dataclass(frozen=True)
class Damage:
    """What is wrong with a block. `place` is the flat element of a column, None when more than one bit differs."""

    field: str  # a column, HEADER, a path in the notes, or "(end)" of a file that is too short
    recorded: str  # value or checksum
    found: str
    place: int | None = None


def find_damage(folder: Path, entry: TraceEntry) -> Damage | None:
    """The first field of a block or its notes that is not what the journal says, or None.

    Raises DataError when there is no such file.
    """
    path = folder / entry.file
    try:
        with open(path, "rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.length)
    except OSError as error:
        raise DataError(f"the trace cannot be read: {error.strerror}", where=str(path)) from error
    if len(data) != entry.length:
        return Damage("(end)", f"{entry.length} bytes", f"{len(data)} bytes")
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    if digest == entry.digest:
        return _notes_damage(path.with_suffix(".jsonl"), entry) if NOTES in entry.columns else None
    if not entry.columns:  # an older run, whose journal has no checksums of columns
        return Damage("(block)", entry.digest, digest)
    header = _header_checksum(data)
    if header != entry.columns[HEADER]:  # nothing behind it can be told apart
        return Damage(HEADER, f"crc32 {entry.columns[HEADER]}", f"crc32 {header}")
    found = _checksums(data)
    name = next(name for name in entry.columns if name != NOTES and found[name] != entry.columns[name])
    return _name_flip(data, name, entry.columns[name], found[name])


def _checksums(data: bytes) -> dict[str, str]:
    """{column, or HEADER: crc32 in hex} of a block's bytes."""
    sums = {HEADER: _header_checksum(data)}
    for name, (start, stop, _) in _columns(data).items():
        sums[name] = f"{zlib.crc32(data[start:stop]):08x}"
    return sums


def _header_checksum(data: bytes) -> str:
    return f"{zlib.crc32(data[: _header_end(data)]):08x}"


def _header_end(data: bytes) -> int:
    (size,) = struct.unpack_from("<Q", data, 0)
    return min(8 + size, len(data))


def _columns(data: bytes) -> dict[str, tuple[int, int, str]]:
    """{column: (first byte, end, dtype word)}"""
    end = _header_end(data)
    header = json.loads(data[8:end])
    header.pop("__metadata__")
    return {
        name: (end + entry["data_offsets"][0], end + entry["data_offsets"][1], entry["dtype"])
        for name, entry in header.items()
    }


def _name_flip(data: bytes, name: str, recorded: str, found: str) -> Damage:
    """The element that one flipped bit changed, with both values; both checksums when it was more than a bit."""
    start, stop, word = _columns(data)[name]
    raw = bytearray(data[start:stop])
    bit = flipped_bit(int(recorded, 16), raw)
    if bit is None:
        return Damage(name, f"crc32 {recorded}", f"crc32 {found}")
    dtype = np.dtype(SAFETENSORS_DTYPES[word])
    place = bit // 8 // dtype.itemsize
    after = np.frombuffer(raw, dtype)[place].item()
    raw[bit // 8] ^= 1 << bit % 8
    return Damage(name, repr(np.frombuffer(raw, dtype)[place].item()), repr(after), place)


def _notes_damage(path: Path, entry: TraceEntry) -> Damage | None:
    """What is wrong with a block's line of notes, which is found by its checksum."""
    recorded = entry.columns[NOTES]
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"the notes of the trace cannot be read: {error.strerror}", where=str(path)) from error
    if any(f"{zlib.crc32(line):08x}" == recorded for line in lines):
        return None
    for line in sorted(lines, key=lambda line: entry.digest.encode() not in line):
        bit = flipped_bit(int(recorded, 16), line)
        if bit is not None:
            before = bytearray(line)
            before[bit // 8] ^= 1 << bit % 8
            return _changed_note(json.loads(before), line)
    return Damage(NOTES, f"crc32 {recorded}", "no such line")


def _changed_note(before: Any, line: bytes) -> Damage:
    try:
        after = json.loads(line)
    except ValueError:  # the flip broke the line itself
        return Damage(NOTES, "a line of JSON", repr(line[:40]))
    return _first_change(before, after, "notes") or Damage(NOTES, "a line of JSON", "the same in other bytes")


def _first_change(before: Any, after: Any, path: str) -> Damage | None:
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        pairs = [(before[key], after[key], f"{path}.{key}") for key in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(old, new, f"{path}[{place}]") for place, (old, new) in enumerate(zip(before, after, strict=True))]
    else:
        return None if before == after else Damage(path, repr(before), repr(after))
    return next((change for pair in pairs if (change := _first_change(*pair))), None)


def flipped_bit(recorded: int, data: bytes | bytearray) -> int | None:
    """The place of the one bit of `data` whose change explains its crc32, or None when no single bit does.

    crc32 is linear, so a flip changes it by an amount that depends on the distance to the end alone: the register 1
    after that many zero bits. Bit 0 is the lowest of the first byte.
    """
    change, register = zlib.crc32(data) ^ recorded, 1
    for distance in range(1, 8 * len(data) + 1):
        register = register >> 1 ^ (0xEDB88320 if register & 1 else 0)
        if register == change:
            return 8 * len(data) - distance
    return None


def read_notes(folder: Path, entries: Iterable[TraceEntry]) -> dict[str, dict[str, Any]]:
    """{digest: notes} of the blocks that `entries` name, as far as there is a line."""
    wanted: dict[str, set[str]] = {}
    for entry in entries:
        wanted.setdefault(entry.file, set()).add(entry.digest)
    found: dict[str, dict[str, Any]] = {}
    for file, digests in wanted.items():
        path = (folder / file).with_suffix(".jsonl")
        lines = read_jsonl(path) if path.exists() else ()
        found.update({line["digest"]: line for line in lines if line["digest"] in digests})
    return found


def sync_files(folder: Path, files: Iterable[str]) -> None:
    """Force trace files and their notes to the disk, whoever has written them."""
    for file in sorted(set(files)):
        for path in (folder / file, (folder / file).with_suffix(".jsonl")):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
