# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The `relax` command: one table of sub-commands. Each is a module whose `main(argv)` returns the exit code.

A sub-command's module is imported when it is called, so `relax --help` costs no more than Python's own start.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from relax.config.flags import nearest

USAGE_ERROR = 2  # as argparse and ConfigError


class Command(NamedTuple):
    module: str  # has main(argv: Sequence[str] | None) -> int
    summary: str  # one line of `relax --help`


COMMANDS: dict[str, Command] = {
    "train": Command("relax.entrypoints.train", "train a model, or check a configuration with --dry-run"),
    "explain": Command("relax.entrypoints.explain", "prompts, samples, steps and micro-batches of a training command"),
    "render": Command(
        "relax.entrypoints.render", "a row of supervised fine-tuning with what is trained of it in green"
    ),
    "env": Command("relax.entrypoints.env", "versions, devices, what is missing and the command that fixes it"),
    "replay": Command("relax.entrypoints.replay", "compute steps of a run again from its folder, bit for bit"),
    "conformance": Command("relax.entrypoints.conformance", "what an inference server honours of what training needs"),
    "stacks": Command("relax.entrypoints.stacks", "what every process of a run does right now, when it seems stuck"),
    "why": Command("relax.entrypoints.why", "explain a number of a curve down to samples, tokens and tensors"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Call the sub-command that the first word names; the others are its own."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else USAGE_ERROR
    name, rest = words[0], words[1:]
    if name == "--version":
        from relax import __version__

        print(f"relax {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"relax: {explain_unknown(name)}", file=sys.stderr)
        return USAGE_ERROR
    if os.getcwd() not in sys.path and "" not in sys.path:  # user functions are found as by `python -m relax`
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(COMMANDS[name].module).main(rest)


def usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"usage: relax COMMAND [flags]\n\n{rows}\n\n`relax COMMAND --help` lists the flags of a command."


def explain_unknown(name: str) -> str:
    if name.startswith("-"):
        return f"{name} belongs after a command: relax COMMAND {name} ..., with one of {', '.join(COMMANDS)}"
    near = nearest(name, COMMANDS)
    return f"unknown command {name!r}" + (f": did you mean {near}?" if near else f"; known are {', '.join(COMMANDS)}")


if __name__ == "__main__":
    sys.exit(main())
