# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Flags of Megatron, SGLang and the router as data, so that they parse where those packages are not installed.

A JSON table holds `{name without dashes: {type, nargs, choices, default, meaning, until}}`; `""` holds the version
that it describes. Megatron's flags keep their names; the others are spelled `--sglang-name` and `--router-name`.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax.config.flags import parse_float, parse_int

PREFIXES = {"megatron": "--", "sglang": "--sglang-", "router": "--router-"}
_PARSERS = {"int": parse_int, "float": parse_float, "str": str}


@dataclass(frozen=True)
class ExternalFlag:
    """One external flag as it was given: its table, its name without the prefix, and its values."""

    table: str
    name: str
    values: tuple[Any, ...] = ()

    @property
    def option(self) -> str:
        """As the user wrote it."""
        return PREFIXES[self.table] + self.name

    @property
    def value(self) -> Any:
        """A single value, True for a switch, or the tuple of several."""
        if not self.values:
            return True
        return self.values[0] if len(self.values) == 1 else self.values

    def __str__(self) -> str:
        return " ".join([self.option, *map(str, self.values)])


@dataclass(frozen=True)
class ExternalFlags:
    """The external flags of a run, in the order given."""

    given: tuple[ExternalFlag, ...] = ()

    def megatron(self, name: str, default: Any = None) -> Any:
        """The last value given for a Megatron flag."""
        found = [flag.value for flag in self.given if flag.table == "megatron" and flag.name == name]
        return found[-1] if found else default

    def without(self, table: str, names: Container[str]) -> ExternalFlags:
        """The same flags less those of `table` that Relax has under a name of its own."""
        return ExternalFlags(tuple(flag for flag in self.given if flag.table != table or flag.name not in names))

    def argv(self, table: str) -> tuple[str, ...]:
        """The flags of `sglang` or `router` for that program's own command line."""
        return tuple(
            word for flag in self.given if flag.table == table for word in (f"--{flag.name}", *map(str, flag.values))
        )


def table_file(name: str) -> Path:
    """The JSON file of one table."""
    return Path(__file__).with_name(f"{name}.json")


@functools.cache
def read_table(name: str) -> dict[str, dict[str, Any]]:
    """A table as its file has it."""
    return json.loads(table_file(name).read_text("utf-8"))


@functools.cache
def table(name: str) -> dict[str, dict[str, Any]]:
    """{flag name: entry} of one table."""
    return {flag: entry for flag, entry in read_table(name).items() if flag}


def version(name: str) -> str:
    """The release that a table describes."""
    return read_table(name)[""]["version"]


def options() -> list[str]:
    """Every external flag as a user spells it."""
    return [PREFIXES[name] + flag for name in PREFIXES for flag in table(name)]


class _Collect(argparse.Action):
    """Appends an `ExternalFlag` to `namespace.external`, in the order of the command line."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        source, prefix = self.metavar, PREFIXES[str(self.metavar)]
        items = tuple(values) if isinstance(values, list) else () if values is None else (values,)
        flag = ExternalFlag(str(source), str(option_string).removeprefix(prefix), items)
        namespace.external = [*getattr(namespace, "external", []), flag]


def add_external(parser: argparse.ArgumentParser) -> None:
    """Add every external flag, hidden from `--help`."""
    for name, prefix in PREFIXES.items():
        for flag, entry in table(name).items():
            _add(parser, name, prefix, flag, entry)


def _add(parser: argparse.ArgumentParser, source: str, prefix: str, flag: str, entry: dict[str, Any]) -> None:
    switch = entry["type"] in ("switch", "boolean")
    names = [prefix + flag] + ([f"{prefix}no-{flag}"] if entry["type"] == "boolean" else [])
    parser.add_argument(
        *names,
        dest="external",
        action=_Collect,
        metavar=source,
        nargs=0 if switch else entry.get("nargs"),
        type=str if switch else _choice_of(_PARSERS[entry["type"]], entry.get("choices")),
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def _choice_of(parse: Any, choices: Sequence[Any] | None) -> Any:
    if not choices:
        return parse

    def parse_choice(text: str) -> Any:
        value = parse(text)
        if value not in choices:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(map(str, choices))}, got {text!r}")
        return value

    return parse_choice
