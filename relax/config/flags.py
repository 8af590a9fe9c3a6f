# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The mechanism between the command line and the config sections: each flag is written once, as a field.

A section is a frozen dataclass derived from `Section`; `flag(...)` makes a field that is also the flag
`--field-name`. `add_section` adds a section's flags to an argparse parser, with types taken from the annotations.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from relax.config.frozen import FrozenDict, freeze
from relax.config.support import PENDING
from relax.utils.errors import ConfigError

Check = Callable[[Any], str | None]  # what is wrong with a value ("must be >= 1"), or None


def flag(
    default: Any = MISSING,
    *,
    help: str,
    choices: Sequence[str] = (),
    later: Sequence[str] = (),
    check: Check | None = None,
    parse: Callable[[str], Any] | None = None,
    shown: str | None = None,
    hook: bool = False,
) -> Any:
    """A field that is also a documented flag.

    `later` names choices that are known and not available in this version; `shown` says in `--help` what a default of
    None becomes; `parse` replaces the parser that the type implies; `hook` marks a flag that only user hooks read, so
    `--custom-config-path` may set it too.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "later": tuple(later),
        "check": check,
        "parse": parse,
        "shown": shown,
        "hook": hook,
    }
    return field(default=default, metadata=metadata)


def at_least(low: float) -> Check:
    return lambda value: None if value >= low else f"must be >= {low}"


def above(low: float) -> Check:
    return lambda value: None if value > low else f"must be > {low}"


def above_up_to(low: float, high: float) -> Check:
    return lambda value: None if low < value <= high else f"must be > {low} and <= {high}"


def import_path(value: str) -> str | None:
    """`package.module.function`: at least one dot, every part an identifier."""
    parts = value.split(".")
    if len(parts) > 1 and all(part.isidentifier() for part in parts):
        return None
    return "must be an import path of the form package.module.function"


def option_name(name: str) -> str:
    """`rollout_batch_size` -> `--rollout-batch-size`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Kind:
    """What an annotation says about a flag's value."""

    base: type  # int, float, str, bool or FrozenDict
    many: bool = False  # a tuple of `base`
    optional: bool = False  # None is allowed, and means "not given"

    @classmethod
    def of(cls, hint: Any) -> Kind:
        if get_origin(hint) in (Union, types.UnionType):
            inner = [part for part in get_args(hint) if part is not type(None)]
            return cls(*_base(inner[0]), optional=True)
        return cls(*_base(hint))

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.many:
            return isinstance(value, tuple) and all(_is(item, self.base) for item in value)
        return _is(value, self.base)

    def __str__(self) -> str:
        word = {
            int: "a whole number",
            float: "a number",
            str: "text",
            bool: "true or false",
            FrozenDict: "a JSON object",
        }
        return f"a list, each item {word[self.base]}" if self.many else word[self.base]


def _base(hint: Any) -> tuple[type, bool]:
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    return get_origin(hint) or hint, False


def _is(value: Any, base: type) -> bool:
    if base is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if base is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, base)


@functools.cache
def kinds(section: type) -> dict[str, Kind]:
    """{field name: kind} of a section."""
    hints = get_type_hints(section)
    return {f.name: Kind.of(hints[f.name]) for f in fields(section)}


class Section:
    """Base of the config sections: checks each value's type, choices and own rule when it is made."""

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            check_value(f, kinds(type(self))[f.name], getattr(self, f.name))


def check_value(f: Field[Any], kind: Kind, value: Any) -> None:
    """Raise ConfigError, naming the flag, unless `value` is one that the flag may have."""
    name = option_name(f.name)
    if not kind.accepts(value):
        raise ConfigError(f"{name} expects {kind}, got {value!r}")
    if value is None:
        return
    choices, check = f.metadata["choices"], f.metadata["check"]
    for item in value if kind.many else (value,):
        if item in f.metadata["later"]:
            raise ConfigError(f"{name} {item} is known but not available in this version; use {' or '.join(choices)}")
        if choices and item not in choices:
            near = nearest(str(item), choices)
            hint = f" (did you mean {near}?)" if near else ""
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {item!r}{hint}")
    problem = check(value) if check else None
    if problem:
        raise ConfigError(f"{name} {problem}, got {value!r}")


# --------------------------------------------------------------------------- the parser


class Parser(argparse.ArgumentParser):
    """An argparse parser without abbreviations whose errors are ConfigErrors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=119)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs are filled, indented ones are left as they are."""
        parts = text.strip("\n").split("\n\n")
        return "\n\n".join(
            part if part.startswith(" ") else super(_Formatter, self)._fill_text(part, width, indent) for part in parts
        )


class _Switch(argparse.Action):
    """`--x` sets true and `--no-x` false."""

    def __init__(self, option_strings: list[str], dest: str, **kwargs: Any) -> None:
        name = option_strings[0]
        self.off = "--" + name.removeprefix("--no-") if name.startswith("--no-") else "--no-" + name.removeprefix("--")
        super().__init__([name, self.off], dest, nargs=0, **kwargs)

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, option_string != self.off)


def add_section(parser: argparse.ArgumentParser, title: str, section: type) -> None:
    """Add one option a field of `section`. A flag that is not given leaves no attribute in the namespace."""
    group = parser.add_argument_group(title, section.__doc__)
    for f in fields(section):
        kind = kinds(section)[f.name]
        text = (help_text(f) + _default_text(f)).replace("%", "%%")
        if kind.base is bool:
            group.add_argument(option_name(f.name), dest=f.name, action=_Switch, default=argparse.SUPPRESS, help=text)
            continue
        group.add_argument(
            option_name(f.name),
            dest=f.name,
            type=f.metadata["parse"] or _parser_of(kind.base),
            nargs="+" if kind.many else None,
            default=argparse.SUPPRESS,
            metavar="|".join(f.metadata["choices"]) or _METAVAR[kind.base],
            help=text,
        )


def help_text(f: Field[Any]) -> str:
    """The flag's own text, which says so when no run can have the flag yet."""
    later = "Not available in this version. " if f.name in PENDING else ""
    return later + f.metadata["help"]


_METAVAR = {int: "N", float: "X", str: "TEXT", FrozenDict: "JSON"}


def _default_text(f: Field[Any]) -> str:
    if f.metadata["shown"]:
        return f" Default: {f.metadata['shown']}."
    if f.default in (None, MISSING, ()):
        return ""
    return f" Default: {json.dumps(f.default)}."


def _parser_of(base: type) -> Callable[[str], Any]:
    return {int: parse_int, float: parse_float, str: str, FrozenDict: parse_json}[base]


def parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def parse_json(text: str) -> FrozenDict:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"expected a JSON object in single quotes, such as '{{\"key\": 1}}', got {text!r} ({error})"
        ) from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return freeze(value)


# --------------------------------------------------------------------------- names


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a reader most likely meant: one that `name` begins, else the closest spelling."""
    known = list(known)
    longer = [candidate for candidate in known if len(name) > 4 and candidate.startswith(name)]
    if longer:
        return min(longer, key=lambda candidate: (len(candidate), candidate))
    bare = {candidate.removeprefix("--"): candidate for candidate in reversed(known)}
    close = difflib.get_close_matches(name.removeprefix("--"), bare, n=1, cutoff=0.6)
    return bare[close[0]] if close else None
