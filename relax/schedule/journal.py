# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The journal (ledger): the only authority on what was admitted, trained, published and installed.

One JSONL file a writer below `{run_dir}/journal/`, its first line `{"schema": 1, "writer": ..., "incarnation": ...}`.
Lines are buffered and flushed about every 50 ms by whoever owns the writer; an event whose class is `durable`
(bound, published, checkpoint, ended) is on disk before `append` returns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from relax.schedule import events as ev
from relax.utils.errors import DataError

FLUSH_INTERVAL_S = 0.05


class Journal(Protocol):
    first_seq: int  # of this incarnation

    @property
    def next_seq(self) -> int:
        """What the next event will get; those below it are in."""
        ...

    def append(self, event: ev.Event) -> int: ...

    def flush(self, sync: bool = False) -> None: ...

    def close(self) -> None: ...


class MemoryJournal:
    """The journal of inline runs and tests."""

    first_seq = 0

    def __init__(self) -> None:
        self.events: list[ev.Event] = []

    @property
    def next_seq(self) -> int:
        return len(self.events)

    def append(self, event: ev.Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    def flush(self, sync: bool = False) -> None:
        pass

    def close(self) -> None:
        pass


class FileJournal:
    """Appends to one file. Sequence numbers go on where the file ends, so a resumed run continues them."""

    def __init__(self, folder: Path, writer: str, *, incarnation: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{writer}.jsonl"
        self._next = self.first_seq = _repair_tail(self.path)  # of this incarnation
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._write({"schema": ev.SCHEMA, "writer": writer, "incarnation": incarnation})
        self.flush()

    @property
    def next_seq(self) -> int:
        return self._next

    def append(self, event: ev.Event) -> int:
        seq, self._next = self._next, self._next + 1
        self._write({"seq": seq, **event.to_json()})
        if event.durable:
            self.flush(sync=True)
        return seq

    def flush(self, sync: bool = False) -> None:
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self._file.closed:
            self.flush(sync=True)
            self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _repair_tail(path: Path) -> int:
    """Cut a half-written last line (a crash in mid-write) and return the next sequence number."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with open(path, "r+b") as file:
            file.truncate(len(whole))
    return _next_sequence(whole)


def _next_sequence(whole_lines: bytes) -> int:
    sequence = [line["seq"] for line in map(json.loads, whole_lines.splitlines()) if "seq" in line]
    return max(sequence, default=-1) + 1


def end_of_journal(path: Path) -> int:
    """The next sequence number of a file that another process writes, or wrote until it died; 0 without a file."""
    data = path.read_bytes() if path.exists() else b""
    return _next_sequence(data[: data.rfind(b"\n") + 1])


def read_journal(path: Path) -> Iterator[tuple[int, ev.Event]]:
    """(sequence, event) of every known event of one writer's file; unknown kinds are passed over, not removed."""
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith("\n"):
                return  # a crash cut the last line
            line = json.loads(text)
            if "schema" in line:
                if line["schema"] > ev.SCHEMA:
                    raise DataError(
                        f"journal schema {line['schema']} is newer than {ev.SCHEMA}", where=f"{path}:{number}"
                    )
                continue
            event = ev.from_json(line)
            if event is not None:
                yield line["seq"], event


def read_surviving(folder: Path) -> dict[str, list[tuple[int, ev.Event]]]:
    """{writer: its (sequence, event)} of a run as it stands: without what a resume at a checkpoint has undone.

    A rollout that was bound and not trained when the checkpoint was written is bound again behind the `resumed` event.
    """
    lines = {path.stem: list(read_journal(path)) for path in sorted(folder.glob("*.jsonl"))}
    undone: dict[str, list[range]] = {}
    for _, event in lines.get("driver", ()):
        if isinstance(event, ev.Resumed):
            for writer, (first, end) in event.undone.items():
                undone.setdefault(writer, []).append(range(first, end))
    return {
        writer: [(seq, event) for seq, event in found if not any(seq in gap for gap in undone.get(writer, ()))]
        for writer, found in lines.items()
    }
