# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The grammar of `--prompt-data`: which files, and which of their rows.

    source  = item [slice]
    item    = file | folder | list
    list    = "[" source {"," source} "]"  |  "(" source {"," source} ")"
    slice   = "@[" [start] ":" [end] "]"          start and end count rows and may be negative, as in Python

A folder stands for its supported files, recursive and sorted by path. Names may be quoted with ' or ". A slice after a
file or folder takes rows of that file or folder; a slice after a list takes rows of the whole list. A name that exists
as it stands is taken as it stands, so a file may be called `a@[0:2].jsonl` or `[a].jsonl`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from relax.utils.errors import ConfigError

SUFFIXES = (".jsonl", ".parquet")

_SLICE = re.compile(r"@\[\s*(-?\d*)\s*:\s*(-?\d*)\s*\]$")
_CLOSERS = {"[": "]", "(": ")"}
_QUOTES = "'\""


@dataclass(frozen=True)
class Slice:
    """Rows `start` to `end` (exclusive); None is open; negative values count from the end."""

    start: int | None = None
    end: int | None = None

    def rows(self, count: int) -> range:
        return range(count)[self.start : self.end]

    def __str__(self) -> str:
        start, end = ("" if bound is None else str(bound) for bound in (self.start, self.end))
        return f"@[{start}:{end}]"


@dataclass(frozen=True)
class Source:
    """A node of the parsed grammar: one file, or an ordered list of sources; `window` cuts its rows."""

    file: Path | None = None
    parts: tuple[Source, ...] = ()
    window: Slice | None = None


@dataclass(frozen=True)
class Segment:
    """Consecutive rows `start` to `stop` (exclusive) of one file."""

    file: Path
    start: int
    stop: int


def parse_source(spec: str | Sequence[str], *, flag: str = "--prompt-data") -> Source:
    """Parse a path specification; every file is checked to exist. Errors are ConfigError and name `flag`."""
    if not isinstance(spec, str):
        return Source(parts=tuple(_parse(item.strip(), flag) for item in _not_empty(list(spec), str(spec), flag)))
    return _parse(spec.strip(), flag)


def source_files(source: Source) -> list[Path]:
    """All files of the source, in order, each once."""
    found = [source.file] if source.file else [file for part in source.parts for file in source_files(part)]
    return list(dict.fromkeys(found))


def segments(source: Source, count: Callable[[Path], int]) -> list[Segment]:
    """The rows of the source in order, as segments; `count` gives the number of rows of a file."""
    if source.file is not None:
        found = [Segment(source.file, 0, count(source.file))]
    else:
        found = [segment for part in source.parts for segment in segments(part, count)]
    return found if source.window is None else _cut(found, source.window)


def _cut(found: list[Segment], window: Slice) -> list[Segment]:
    rows = window.rows(sum(segment.stop - segment.start for segment in found))
    out, offset = [], 0
    for segment in found:
        length = segment.stop - segment.start
        low, high = max(rows.start - offset, 0), min(rows.stop - offset, length)
        if low < high:
            out.append(Segment(segment.file, segment.start + low, segment.start + high))
        offset += length
    return out


def _parse(text: str, flag: str) -> Source:
    if not text:
        raise ConfigError(f"{flag} is empty; give a .jsonl or .parquet file, a folder, or a list [a,b]")
    if _exists(text):
        return _path_source(text, None, flag)
    body, window = _split_slice(text)
    if body[:1] in _CLOSERS and _matching(body) == len(body) - 1:
        parts = tuple(_parse(item, flag) for item in _not_empty(_split_list(body[1:-1], text, flag), text, flag))
        return Source(parts=parts, window=window)
    if body[:1] and body[0] in _QUOTES and body[-1] == body[0] and len(body) > 1:
        return Source(parts=(_parse(body[1:-1], flag),), window=window)
    return _path_source(body, window, flag)


def _split_slice(text: str) -> tuple[str, Slice | None]:
    match = _SLICE.search(text)
    if match is None:
        return text, None
    start, end = (int(group) if group not in ("", "-") else None for group in match.groups())
    return text[: match.start()].rstrip(), Slice(start, end)


def _matching(text: str) -> int:
    """Place of the bracket that closes the one at place 0, or -1."""
    stack: list[str] = []
    quote = ""
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _CLOSERS:
            stack.append(_CLOSERS[char])
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                return place
    return -1


def _split_list(text: str, spec: str, flag: str) -> list[str]:
    """Cut at commas that stand outside quotes and brackets."""
    items, depth, quote, start = [], 0, "", 0
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:place].strip())
            start = place + 1
    if quote:
        raise ConfigError(f"{flag} {spec!r}: the quote {quote} is not closed")
    last = text[start:].strip()
    return [*items, last] if last else items


def _not_empty(items: list[str], spec: str, flag: str) -> list[str]:
    if not items or not all(item.strip() for item in items):
        raise ConfigError(f"{flag} {spec!r} has an empty list entry; write [a.jsonl,b.parquet]")
    return items


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except OSError:  # a list longer than a file name may be
        return False


def _path_source(text: str, window: Slice | None, flag: str) -> Source:
    path = Path(text).expanduser()
    if path.is_dir():
        return Source(parts=tuple(Source(file=file) for file in _folder_files(path, flag)), window=window)
    if not _exists(text):
        raise ConfigError(f"{flag}: no file or folder {text!r}{_near_names(path)}")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{flag}: {text!r} is not one of {', '.join(SUFFIXES)}; convert it to one of these")
    return Source(file=path, window=window)


def _folder_files(folder: Path, flag: str) -> list[Path]:
    everything = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in everything if path.suffix.lower() in SUFFIXES]
    if not files:
        others = sorted({path.suffix for path in everything if path.suffix})
        raise ConfigError(
            f"{flag}: the folder {str(folder)!r} holds no {' or '.join(SUFFIXES)} file"
            + (f", only {', '.join(others)}; export it to parquet" if others else "")
        )
    return files


def _near_names(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f" (the folder {str(path.parent)!r} does not exist either)"
    near = difflib.get_close_matches(path.name, names, n=3)
    return f"; near it are {', '.join(near)}" if near else ""
