# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""JSON lines that survive numpy values, non-finite numbers and a writer that died in the middle of a line."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from relax.utils.errors import DataError


def plain(value: Any) -> Any:
    """`value` in JSON's own types. JSON has no NaN or infinity: they become the strings "nan", "inf", "-inf"."""
    if value is None or (isinstance(value, (bool, str, int)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    raise TypeError(f"a {type(value).__name__} has no JSON form: {value!r:.80}")


def dumps(value: Any) -> str:
    """One line of JSON, keys in the order given, text as UTF-8."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JsonlWriter:
    """Appends rows to one file. One writer a file; a row reaches the file system whole or as a torn last line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_torn_line(path)
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Any) -> str:
        """Returns the line without its end."""
        text = dumps(row)
        self._file.write(text + "\n")
        return text

    def flush(self) -> None:
        """Hand buffered rows to the operating system: they survive a crash of this process."""
        self._file.flush()

    def sync(self) -> None:
        """Force rows to the disk: they survive a crash of the machine."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _end_torn_line(path: Path) -> None:
    """Cut a last line that a dead writer left without its newline, so that the next row starts a line of its own."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        data = file.read()
        if not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)


def read_jsonl(path: Path) -> Iterator[Any]:
    """Rows of a JSON-lines file. A torn last line is left out; a broken line before it raises `DataError`."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n") and not _parses(raw):
                return
            if not raw.strip():
                continue
            try:
                yield json.loads(raw)
            except ValueError as error:
                raise DataError(f"not a line of JSON: {error}", where=f"{path}:{number}") from error


def _parses(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except ValueError:
        return False
    return True
