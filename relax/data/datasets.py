# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows of `--prompt-data` behind one protocol: eager (all rows in memory) and streaming (read on demand).

Both give the same rows in the same order with the same digest, so a run may switch between them at a resume.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from relax.data.paths import parse_source, segments, source_files
from relax.data.readers import RowReader, open_reader
from relax.utils.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RawRow:
    """One row as the file has it. `values` is shared: readers must not change it."""

    values: dict[str, Any]
    where: str  # file:line of a .jsonl (from 1), file:row of a .parquet (from 0)
    folder: Path  # relative media paths start here


class PromptDataset(Protocol):
    """Rows in data-set order. `digest` identifies their content and order."""

    digest: str

    def __len__(self) -> int: ...

    def row(self, index: int) -> RawRow: ...

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start reading rows that will be asked for soon."""
        ...

    def close(self) -> None: ...


def open_dataset(
    spec: str | Sequence[str],
    *,
    streaming: bool = False,
    buffer_rows: int = 10_000,
    buffer_bytes: int = 1 << 30,
    prefetch_rows: int = 256,
    prefetch_workers: int = 1,
    flag: str = "--prompt-data",
) -> PromptDataset:
    """Open the files of a path specification (grammar in `relax.data.paths`).

    The buffer and prefetch limits are those of the streaming form. Raises ConfigError when there is no row.
    """
    rows = FileRows(spec, flag=flag)
    if len(rows) == 0:
        raise ConfigError(f"{flag} {spec!r} has no rows")
    if not streaming:
        return EagerDataset(rows)
    return StreamingDataset(
        rows,
        buffer_rows=buffer_rows,
        buffer_bytes=buffer_bytes,
        prefetch_rows=prefetch_rows,
        prefetch_workers=prefetch_workers,
    )


class FileRows:
    """The rows that a path specification names, read from disk at each call."""

    def __init__(self, spec: str | Sequence[str], *, flag: str = "--prompt-data") -> None:
        source = parse_source(spec, flag=flag)
        self._readers: dict[Path, RowReader] = {file: open_reader(file) for file in source_files(source)}
        self._segments = segments(source, lambda file: len(self._readers[file]))
        self._ends: list[int] = []
        content = hashlib.blake2b(digest_size=16)
        for segment in self._segments:
            self._ends.append((self._ends[-1] if self._ends else 0) + segment.stop - segment.start)
            # Names stay out of it: a data set that has moved to another folder is still the same.
            content.update(f"{self._readers[segment.file].digest}:{segment.start}:{segment.stop};".encode())
        self.digest = content.hexdigest()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, index: int) -> tuple[RawRow, int]:
        """The row and about how many bytes it takes."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a data set of {len(self)} rows")
        place = bisect_right(self._ends, index)
        segment = self._segments[place]
        inside = segment.start + index - (self._ends[place] - (segment.stop - segment.start))
        reader = self._readers[segment.file]
        values, nbytes = reader.row(inside)
        return RawRow(values, reader.where(inside), segment.file.parent), nbytes

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


class EagerDataset:
    """All rows parsed at start, so a broken row is found before anything expensive begins."""

    def __init__(self, rows: FileRows) -> None:
        self.digest = rows.digest
        self._rows = [rows.read(index)[0] for index in range(len(rows))]
        rows.close()

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> RawRow:
        return self._rows[index]

    def prefetch(self, indices: Sequence[int]) -> None:
        """Nothing to do: every row is in memory."""

    def close(self) -> None:
        self._rows = []


class StreamingDataset:
    """Rows read on demand; the last used stay, up to `buffer_rows` and `buffer_bytes`. Safe to use from threads."""

    def __init__(
        self,
        rows: FileRows,
        *,
        buffer_rows: int = 10_000,
        buffer_bytes: int = 1 << 30,
        prefetch_rows: int = 256,
        prefetch_workers: int = 1,
    ) -> None:
        if buffer_rows < 1:
            raise ConfigError(f"--streaming-buffer-size must be >= 1, got {buffer_rows}")
        self.digest = rows.digest
        self._rows = rows
        self._buffer_rows = buffer_rows
        self._buffer_bytes = buffer_bytes
        self._prefetch_rows = min(prefetch_rows, buffer_rows)
        self._lock = threading.Lock()
        self._buffer: OrderedDict[int, tuple[RawRow, int]] = OrderedDict()
        self._held = 0  # bytes in the buffer
        self._pending: dict[int, Future[None]] = {}  # rows that a thread reads, or will
        self._workers = (
            ThreadPoolExecutor(prefetch_workers, thread_name_prefix="relax-prefetch") if prefetch_workers > 0 else None
        )

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> RawRow:
        with self._lock:
            pending = self._pending.get(index)
        if pending is not None:
            with contextlib.suppress(CancelledError):  # by `close`
                pending.result()  # a row is read once; its error, if any, comes from the read below
        with self._lock:
            if index in self._buffer:
                self._buffer.move_to_end(index)
                return self._buffer[index][0]
        row, nbytes = self._rows.read(index)
        self._keep(index, row, nbytes)
        return row

    def prefetch(self, indices: Sequence[int]) -> None:
        """Read up to `--prefetch-max-cached` of the rows in the background; an error waits for `row`."""
        if self._workers is None:
            return
        with self._lock:
            room = self._prefetch_rows - len(self._pending)
            wanted = [index for index in indices if index not in self._buffer and index not in self._pending]
            for index in list(dict.fromkeys(wanted))[: max(0, room)]:
                self._pending[index] = self._workers.submit(self._fetch, index)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown(wait=True, cancel_futures=True)
        self._rows.close()

    def _fetch(self, index: int) -> None:
        try:
            row, nbytes = self._rows.read(index)
            self._keep(index, row, nbytes)
        except Exception as error:  # `row(index)` reads the same row again and raises the same error to its caller
            logger.debug("row could not be read ahead row=%d error=%s", index, error)
        finally:
            with self._lock:
                del self._pending[index]

    def _keep(self, index: int, row: RawRow, nbytes: int) -> None:
        with self._lock:
            if index in self._buffer:
                return
            self._buffer[index] = (row, nbytes)
            self._held += nbytes
            while len(self._buffer) > 1 and (len(self._buffer) > self._buffer_rows or self._held > self._buffer_bytes):
                _, (_, freed) = self._buffer.popitem(last=False)
                self._held -= freed
