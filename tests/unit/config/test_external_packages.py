# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The tables of external flags against the real parsers, where those packages are installed (E3)."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import pytest

from relax.config.external.tables import table, version

REAL = {"int": int, "float": float}


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """{name: action} of long spellings; the `--no-` form of a boolean belongs to its name."""
    found = {}
    for action in parser._actions:
        words = [word for word in action.option_strings if word.startswith("--") and word != "--help"]
        for word in words[:1] if isinstance(action, argparse.BooleanOptionalAction) else words:
            found[word.removeprefix("--")] = action
    return found


def kind(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean"
    if action.nargs == 0:
        return "switch"
    return {int: "int", float: "float"}.get(action.type, "str")  # type: ignore[arg-type]


def differences(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """Flags that only one side has, or of another type."""
    real = options(parser)
    known = {flag: entry for flag, entry in table(name).items() if "until" not in entry}
    lines = [f"only in the table: {flag}" for flag in sorted(known.keys() - real.keys())]
    for flag, action in sorted(real.items()):
        if flag not in known:
            lines.append(f"only in the package: {flag}")
        elif kind(action) != known[flag]["type"]:
            lines.append(f"{flag}: {kind(action)} in the package, {known[flag]['type']} in the table")
    return lines


def package(module: str, name: str) -> Any:
    found = pytest.importorskip(module)
    if getattr(found, "__version__", version(name)) != version(name):
        pytest.skip(f"{module} {found.__version__} is installed, the table describes {version(name)}")
    return found


def test_the_router_table_is_that_of_the_installed_router() -> None:
    package("sglang_router", "router")
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang_router.router_args").RouterArgs.add_cli_args(parser)
    assert differences("router", parser) == []


def test_the_sglang_table_is_that_of_the_installed_sglang() -> None:
    package("sglang", "sglang")
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    assert differences("sglang", parser) == []
