# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the data preparation tools share: their command line, an output that appears whole or not at all, the count."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relax.utils.errors import DataError
from relax.utils.types import MODALITIES


@dataclass
class Account:
    """Rows read, rows written, and why the others were left out. `written + left out == read`, or it is an error."""

    read: int = 0
    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # by reason
    first: dict[str, str] = field(default_factory=dict)  # where a reason was met first

    def leave_out(self, reason: str, where: str) -> None:
        self.left_out[reason] += 1
        self.first.setdefault(reason, where)

    def lines(self, output: Path) -> list[str]:
        told = [f"rows read: {self.read}", f"rows written: {self.written} to {output}"]
        told += [
            f"rows left out: {count}, {reason} (first: {self.first[reason]})"
            for reason, count in self.left_out.most_common()
        ]
        return told


@contextmanager
def written_aside(output: Path) -> Iterator[Path]:
    """A path next to `output` to write to; it takes the place of `output` when the body ends well, else it goes."""
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def parser_of(documentation: str | None, *, source: str, target: str) -> argparse.ArgumentParser:
    """A tool's parser with `--input-dir` and `--output-dir`: both name files, with these suffixes.

    `documentation` is the tool's: its first paragraph describes, the rest ends the help.
    """
    description, _, rest = (documentation or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input-dir", type=Path, required=True, metavar=f"IN{source}", help="the file to read")
    parser.add_argument("--output-dir", type=Path, required=True, metavar=f"OUT{target}", help="the file to write")
    return parser


def check_files(parser: argparse.ArgumentParser, source: Path, output: Path, *, suffix: str) -> None:
    """End with a message, before anything is read, when the two paths cannot be what they should."""
    if not source.is_file():
        kind = "is a folder; name the file in it" if source.is_dir() else "is not there"
        parser.error(f"--input-dir takes a file, and {source} {kind}")
    if output.is_dir():
        parser.error(f"--output-dir takes a file, and {output} is a folder; write {output}/NAME{suffix}")
    if output.suffix != suffix:
        parser.error(f"--output-dir must end in {suffix}, got {output}")
    if not output.parent.is_dir():
        parser.error(f"--output-dir {output}: the folder {output.parent} is not there; make it first")
    if output.exists() and output.samefile(source):
        parser.error(f"--output-dir is the input file {source}; name another file")


def run(name: str, convert: Callable[[Path], Account], output: Path) -> int:
    """Have `convert` write the output's rows to the path it gets, and tell its count -> exit code."""
    try:
        with written_aside(output) as partial:
            account = convert(partial)
            if account.read != account.written + account.left_out.total():
                raise AssertionError(f"{account} does not come out even")
            if not account.written:
                raise DataError("\n".join(["no row is left, so nothing is written", *account.lines(output)]))
    except (DataError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    print("\n".join(account.lines(output)))
    return 0


def with_placeholders(text: str, media: Sequence[str], *, where: str) -> str:
    """`text` with one `<modality>` for each medium: as it stands when it has them all, in front when it has none."""
    asked, given = {kind: text.count(f"<{kind}>") for kind in MODALITIES}, Counter(media)
    wrong = [kind for kind in given if asked[kind] not in (0, given[kind])]
    if wrong:
        told = ", ".join(f"{asked[kind]} <{kind}> for {given[kind]} {kind} entries" for kind in wrong)
        raise DataError(f"the text has {told}: {text[:120]!r}", where=where)
    return "".join(f"<{kind}>" for kind in media if not asked[kind]) + text
