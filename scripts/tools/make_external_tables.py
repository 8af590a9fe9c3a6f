# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Write the table of another program's flags from its own parser, where that program is installed.

    python scripts/tools/make_external_tables.py megatron     # relax/config/external/megatron.json

Names, types, choices and defaults come from the parser. Meanings are ours and are kept, as are flags of older releases
(`until`). Flags that Relax has under the same name are left out: they are Relax's.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relax.config.command_line import SECTION_OF
from relax.config.external.tables import PREFIXES, read_table, table_file
from relax.config.flags import option_name


def megatron_parser() -> tuple[argparse.ArgumentParser, str]:
    """Megatron-LM's training parser and its release."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("megatron.training.arguments").add_megatron_arguments(parser)
    return parser, importlib.import_module("megatron.core").__version__


def sglang_parser() -> tuple[argparse.ArgumentParser, str]:
    """SGLang's server parser and its release."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser, importlib.import_module("sglang").__version__


def router_parser() -> tuple[argparse.ArgumentParser, str]:
    """The parser of SGLang's router and its release."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("sglang_router.router_args").RouterArgs.add_cli_args(parser)
    return parser, importlib.import_module("sglang_router").__version__


PARSERS: dict[str, Callable[[], tuple[argparse.ArgumentParser, str]]] = {
    "megatron": megatron_parser,
    "sglang": sglang_parser,
    "router": router_parser,
}


def entries(parser: argparse.ArgumentParser, prefix: str) -> dict[str, dict[str, Any]]:
    """{flag name: entry} of the parser's long spellings; the `--no-` form of a boolean belongs to its name."""
    ours = {option_name(name) for name in SECTION_OF}
    ours |= {"--no-" + name.removeprefix("--") for name in ours}
    found = {}
    for action in parser._actions:
        words = [word for word in action.option_strings if word.startswith("--") and word != "--help"]
        for word in words[:1] if isinstance(action, argparse.BooleanOptionalAction) else words:
            if prefix + word.removeprefix("--") not in ours:
                found[word.removeprefix("--")] = entry(action)
    return found


def entry(action: argparse.Action) -> dict[str, Any]:
    """What the table keeps of one option."""
    made: dict[str, Any] = {"type": kind(action)}
    if action.nargs not in (None, 0):
        made["nargs"] = action.nargs
    if action.choices is not None:
        choices = [choice.name if isinstance(choice, enum.Enum) else choice for choice in action.choices]
        made["choices"] = sorted(choices, key=str)  # some parsers list theirs in another order each time
    default = action.default.name if isinstance(action.default, enum.Enum) else action.default
    if isinstance(default, (list, tuple)) and default:
        made["default"] = list(default)
    elif isinstance(default, (str, int, float)) and not isinstance(default, bool) and default != argparse.SUPPRESS:
        made["default"] = default
    return made


def kind(action: argparse.Action) -> str:
    """switch, boolean (with a `--no-` form), int, float or str."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean"
    if action.nargs == 0:
        return "switch"
    return {int: "int", float: "float"}.get(action.type, "str")  # type: ignore[arg-type]


def merged(name: str, parser: argparse.ArgumentParser, release: str) -> dict[str, dict[str, Any]]:
    """The parser's entries with the meanings and older flags of the table that stands."""
    standing = read_table(name)
    made = entries(parser, PREFIXES[name])
    for flag, old in standing.items():
        if flag in made and "meaning" in old:
            made[flag]["meaning"] = old["meaning"]
        elif flag and flag not in made and "until" in old:
            made[flag] = old
    return {"": {"version": release}} | dict(sorted(made.items()))


def text(content: dict[str, dict[str, Any]]) -> str:
    """One flag a line."""
    rows = [f"  {json.dumps(flag)}: {json.dumps(item)}" for flag, item in content.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main(names: list[str]) -> None:
    for name in names or list(PARSERS):
        content = merged(name, *PARSERS[name]())
        table_file(name).write_text(text(content), "utf-8")
        print(f"{Path(table_file(name)).name}: {len(content) - 1} flags of {content['']['version']}")


if __name__ == "__main__":
    main(sys.argv[1:])
