# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The mechanism: a field is a flag, its type parses it, its rule checks it."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass

import pytest

from relax.config.flags import Kind, Parser, Section, add_section, at_least, flag, import_path, nearest
from relax.config.frozen import FrozenDict, freeze
from relax.utils.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Example(Section):
    """An example."""

    whole: int = flag(3, help="A whole number.", check=at_least(1))
    share: float | None = flag(None, help="A number.")
    words: tuple[str, ...] = flag((), help="Words.")
    numbers: tuple[int, ...] = flag((), help="Numbers.")
    kind: str = flag("a", help="A choice.", choices=("a", "b"), later=("c",))
    on: bool = flag(True, help="A switch, 100 % on.")
    no_brakes: bool = flag(False, help="A negative switch.")
    table: FrozenDict | None = flag(None, help="JSON.")  # noqa: RUF009


def parse(*argv: str) -> dict[str, object]:
    parser = Parser(prog="x", add_help=False)
    add_section(parser, "example", Example)
    namespace = parser.parse_args(argv)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in vars(namespace).items()}


def test_a_flag_that_is_not_given_leaves_nothing() -> None:
    assert parse() == {}


def test_types_come_from_the_annotations() -> None:
    argv = [
        "--whole",
        "7",
        "--share",
        "1e-6",
        "--words",
        "a",
        "b",
        "--numbers",
        "1",
        "-1",
        "--table",
        '{"k": [1, {"l": 2}]}',
    ]
    assert parse(*argv) == {
        "whole": 7,
        "share": 1e-6,
        "words": ("a", "b"),
        "numbers": (1, -1),
        "table": {"k": (1, {"l": 2})},
    }


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("--on", "on", True),
        ("--no-on", "on", False),
        ("--no-brakes", "no_brakes", True),
        ("--brakes", "no_brakes", False),
    ],
)
def test_a_switch_has_two_spellings(word: str, name: str, value: bool) -> None:
    assert parse(word) == {name: value}


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--whole", "1.5"], "--whole: expected a whole number, got '1.5'"),
        (["--share", "x"], "--share: expected a number, got 'x'"),
        (["--table", "{'k': 1}"], "--table: expected a JSON object in single quotes"),
        (["--table", "[1]"], "--table: expected a JSON object, got '[1]'"),
        (["--whole"], "--whole: expected one argument"),
        (["--on=1"], "--on/--no-on: ignored explicit argument '1'"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_flag(argv: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--") as caught:
        parse(*argv)
    assert text in str(caught.value)


def test_abbreviations_are_not_accepted() -> None:
    with pytest.raises(ConfigError, match="--who"):
        parse("--who", "3")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("whole", 0, "--whole must be >= 1, got 0"),
        ("whole", True, "--whole expects a whole number, got True"),
        ("whole", None, "--whole expects a whole number, got None"),
        ("share", "1", "--share expects a number, got '1'"),
        ("words", ["a"], "--words expects a list, each item text, got ['a']"),
        ("kind", "d", "--kind must be one of a, b, got 'd'"),
        ("kind", "c", "--kind c is known but not available in this version; use a or b"),
    ],
)
def test_a_section_checks_each_value(field: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Example(**{field: value})
    assert str(caught.value).startswith(text)


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Example().whole = 4  # type: ignore[misc]


def test_a_whole_number_is_a_number() -> None:
    assert Kind.of(float).accepts(3)
    assert not Kind.of(int).accepts(3.0)


@pytest.mark.parametrize(
    ("path", "good"), [("a.b", True), ("a.b.c_1", True), ("a", False), ("a..b", False), ("a.b()", False)]
)
def test_an_import_path_has_a_module_and_a_name(path: str, good: bool) -> None:
    assert (import_path(path) is None) == good


def test_the_nearest_name_prefers_what_the_word_begins() -> None:
    known = ["--rollout-batch-size", "--rollout-backend", "--global-batch-size"]
    assert nearest("--rollout-batch", known) == "--rollout-batch-size"
    assert nearest("--golbal-batch-size", known) == "--global-batch-size"
    assert nearest("--zzz", known) is None


def test_frozen_values_refuse_every_change_and_pickle() -> None:
    value = freeze({"a": [1, {"b": 2}]})
    for change in (
        lambda: value.__setitem__("a", 1),
        lambda: value.update(a=1),
        lambda: value.pop("a"),
        lambda: value.clear(),
        lambda: value["a"][1].setdefault("c", 1),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    assert pickle.loads(pickle.dumps(value)) == {"a": (1, {"b": 2})}
    assert hash(value) == hash(freeze({"a": [1, {"b": 2}]}))
