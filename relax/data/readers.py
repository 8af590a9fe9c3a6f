# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Random access to the rows of one .jsonl or .parquet file with bounded memory.

A reader knows `len`, `row(i)`, `where(i)` and `digest`. A `.jsonl` file is indexed by byte offset in one pass (24
bytes a row) and rows are read with `pread`; lines end at `\\n` only, blank lines are no rows, a UTF-8 byte order mark
is skipped. A `.parquet` file is read by row group in small record batches; the last used row groups stay in memory,
and a row group above `SPILL_BYTES` is written once to a temporary Arrow file and memory-mapped, because Parquet
cannot seek inside a row group.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from bisect import bisect_right
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from relax.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

SCAN_BYTES = 1 << 24  # bytes read at a time while indexing
BATCH_BYTES = 64 << 20  # aim for a record batch, so nested columns never come back chunked
GROUP_CACHE_BYTES = 256 << 20  # row groups kept in memory per file
SPILL_BYTES = 512 << 20  # row groups above this go to a memory-mapped file

_BOM = b"\xef\xbb\xbf"
_BLANK = np.frombuffer(b" \t\r\n", np.uint8)


class ReadRow(NamedTuple):
    values: dict[str, Any]
    nbytes: int  # about what the row takes in memory


class RowReader(Protocol):
    """Rows of one file. `digest` is a hex string that changes when the content does."""

    digest: str

    def __len__(self) -> int: ...

    def row(self, index: int) -> ReadRow: ...

    def where(self, index: int) -> str: ...

    def close(self) -> None: ...


def open_reader(path: Path) -> RowReader:
    """The reader for the file's suffix."""
    return ParquetReader(path) if path.suffix.lower() == ".parquet" else JsonlReader(path)


class JsonlReader:
    """One JSON object a line. `where` is `file:line`, lines counted from 1."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY)
        self._starts, self._stops, self._lines, self.digest = _index_lines(self._fd)

    def __len__(self) -> int:
        return len(self._starts)

    def where(self, index: int) -> str:
        return f"{self._path}:{int(self._lines[index])}"

    def row(self, index: int) -> ReadRow:
        start, stop = int(self._starts[index]), int(self._stops[index])
        raw = os.pread(self._fd, stop - start, start)
        try:
            values = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"the line is not UTF-8: {error}", where=self.where(index)) from error
        except json.JSONDecodeError as error:
            message = f"the line is not JSON: {error}; it starts with {raw[:80].decode('utf-8', 'replace')!r}"
            raise DataError(message, where=self.where(index)) from error
        if not isinstance(values, dict):
            text = raw[:60].decode("utf-8", "replace")
            message = f"a row must be a JSON object, this one is a {type(values).__name__}: {text!r}"
            raise DataError(message, where=self.where(index))
        return ReadRow(values, len(raw))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _index_lines(fd: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """(start, stop, line number) of each line that is not blank, and the content's digest."""
    content = hashlib.blake2b(digest_size=16)
    starts, firsts = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)]
    size, at_line_start = 0, True
    with ThreadPoolExecutor(1) as hashing:  # hashing a block takes as long as scanning it, so they overlap
        done: Future[None] | None = None
        while block := os.pread(fd, SCAN_BYTES, size):
            if done is not None:
                done.result()
            done = hashing.submit(content.update, block)
            data = np.frombuffer(block, np.uint8)
            begins = np.flatnonzero(data == 10).astype(np.int64) + 1
            if at_line_start:
                begins = np.concatenate([[0], begins])
            at_line_start = block.endswith(b"\n")
            if at_line_start:
                begins = begins[:-1]
            starts.append(begins + size)
            firsts.append(data[begins])
            size += len(block)
    begin, first = np.concatenate(starts), np.concatenate(firsts)
    last = size - 1 if at_line_start else size
    end = np.concatenate([begin[1:] - 1, [last]])[: len(begin)]
    if os.pread(fd, 3, 0) == _BOM:
        begin[0], first[0] = 3, ord("\n")  # look at the first line whatever follows the mark
    kept = np.ones(len(begin), bool)
    for line in np.flatnonzero(np.isin(first, _BLANK)).tolist():  # only these lines can be blank
        kept[line] = bool(os.pread(fd, int(end[line] - begin[line]), int(begin[line])).strip())
    return begin[kept], end[kept], np.flatnonzero(kept) + 1, content.hexdigest()


class ParquetReader:
    """Rows of a Parquet file as plain lists and dicts. `where` is `file:row`, rows counted from 0."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = path
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"--prompt-data: {str(path)!r} cannot be read as Parquet: {error}") from error
        meta = self._file.metadata
        sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._ends = np.cumsum(sizes).tolist()
        self.digest = _footer_digest(path)
        self._lock = threading.Lock()  # a ParquetFile is not safe to read from two threads
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()
        self._spilled: dict[int, pa.Table] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def where(self, index: int) -> str:
        return f"{self._path}:{index}"

    def row(self, index: int) -> ReadRow:
        group = bisect_right(self._ends, index)
        first = self._ends[group - 1] if group else 0
        with self._lock:
            table = self._group(group)
        piece = table.slice(index - first, 1)
        values = piece.to_pylist(maps_as_pydicts="lossy")[0]
        return ReadRow({name: strip_nulls(value) for name, value in values.items()}, piece.nbytes)

    def close(self) -> None:
        with self._lock:
            self._groups.clear()
            self._spilled.clear()
            self._file.close()
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def _group(self, group: int) -> pa.Table:
        if group in self._spilled:
            return self._spilled[group]
        if group in self._groups:
            self._groups.move_to_end(group)
            return self._groups[group]
        if self._file.metadata.row_group(group).total_byte_size > SPILL_BYTES:
            return self._spilled.setdefault(group, self._spill(group))
        import pyarrow as pa

        table = pa.Table.from_batches(self._batches(group), schema=self._file.schema_arrow)
        self._groups[group] = table
        while len(self._groups) > 1 and sum(kept.nbytes for kept in self._groups.values()) > GROUP_CACHE_BYTES:
            self._groups.popitem(last=False)
        return table

    def _batches(self, group: int) -> Any:
        meta = self._file.metadata.row_group(group)
        rows = max(1, min(1024, BATCH_BYTES * meta.num_rows // max(1, meta.total_byte_size)))
        return self._file.iter_batches(batch_size=rows, row_groups=[group])

    def _spill(self, group: int) -> pa.Table:
        """Write the row group to an Arrow file and map it, so memory holds only the rows that are touched."""
        import pyarrow as pa

        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="relax-parquet-")
        target = os.path.join(self._folder.name, f"{group}.arrow")
        with pa.OSFile(target, "wb") as sink, pa.ipc.new_file(sink, self._file.schema_arrow) as writer:
            for batch in self._batches(group):
                writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(target)).read_all()


def _footer_digest(path: Path) -> str:
    """Digest of size and footer: the footer holds offsets, sizes and statistics of every column chunk."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        footer = file.read(length)
    return hashlib.blake2b(size.to_bytes(8, "little") + footer, digest_size=16).hexdigest()


def strip_nulls(value: Any) -> Any:
    """Drop the null fields that Arrow invents when it unites the keys of nested structs."""
    if isinstance(value, dict):
        return {key: strip_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [strip_nulls(item) for item in value]
    return value
