# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The tables of external flags against the real parsers, where those packages are installed (E3)."""

from __future__ import annotations

import argparse
from enum import Enum
from typing import Any

import pytest

from relax.config.external.tables import PREFIXES, read_table, table, version
from scripts.tools.make_external_tables import PARSERS, entries, text

MODULES = {"megatron": "megatron.training", "sglang": "sglang", "router": "sglang_router"}


@pytest.mark.parametrize("name", MODULES)
def test_a_table_is_that_of_the_installed_package(name: str) -> None:
    """Names, types, choices and defaults. Flags of older releases stay."""
    pytest.importorskip(MODULES[name])
    parser, release = PARSERS[name]()
    if release != version(name):
        pytest.skip(f"{name} {release} is installed, the table describes {version(name)}")
    real = entries(parser, PREFIXES[name])
    known = {flag: without_meaning(entry) for flag, entry in table(name).items() if "until" not in entry}
    assert sorted(known.keys() ^ real.keys()) == []
    assert {flag: entry for flag, entry in known.items() if entry != real[flag]} == {}


def without_meaning(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "meaning"}


@pytest.mark.parametrize("name", MODULES)
def test_a_file_has_the_form_that_the_tool_writes(name: str) -> None:
    content = read_table(name)
    assert list(content) == sorted(content)
    lines = text(content).splitlines()
    assert len(lines) == len(content) + 2
    assert lines[1].startswith('  "": {"version": ')


class Kernel(Enum):
    fast = 1
    slow = 2


def test_the_tool_reads_names_types_choices_and_defaults() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", "-w", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--names", nargs="+", default=["a"])
    parser.add_argument("--kernel", choices=list(Kernel), default=Kernel.fast)
    parser.add_argument("--mode", choices=["a", "b"])
    parser.add_argument("--no-rope", action="store_false", dest="rope")
    parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--no-colocate", action="store_false")
    assert entries(parser, "--") == {  # --lr and --no-colocate are Relax's own
        "width": {"type": "int", "default": 3},
        "rate": {"type": "float", "default": 0.5},
        "names": {"type": "str", "nargs": "+", "default": ["a"]},
        "kernel": {"type": "str", "choices": ["fast", "slow"], "default": "fast"},
        "mode": {"type": "str", "choices": ["a", "b"]},
        "no-rope": {"type": "switch"},
        "cache": {"type": "boolean"},
    }
    assert "lr" in entries(parser, "--sglang-")
