# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The `relax` command: its table, what it refuses, and what it does not import."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from relax.entrypoints.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_with_a_main(name, capsys):
    assert callable(importlib.import_module(COMMANDS[name].module).main)
    main(["--help"])
    assert f"  {name}" in capsys.readouterr().out


def test_the_console_script_of_the_distribution_is_this_main():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["relax"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def test_the_words_after_the_command_are_its_own(capsys):
    assert main(["train", "--num-rollouts", "3"]) == 2
    assert capsys.readouterr().err.startswith("ConfigError: --num-rollouts could mean two things")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "usage: relax COMMAND"),
        (["trian"], 2, "unknown command 'trian': did you mean train?"),
        (["--lr", "1"], 2, "--lr belongs after a command: relax COMMAND --lr ..."),
        (["--version"], 0, "relax 0."),
    ],
)
def test_other_words_are_answered_with_what_to_do(words, code, told, capsys):
    assert main(words) == code
    assert told in "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_is_quick_and_needs_neither_torch_nor_ray(words):
    out = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "relax", *words],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    assert "relax" in out.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in out.stderr.splitlines() if line.startswith("import time:")}
    assert not imported & {"torch", "ray", "transformers", "aiohttp"}
