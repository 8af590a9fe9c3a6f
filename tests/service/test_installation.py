# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A fresh clone installs by the documented commands into environments of its own. Needs a package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documented_commands import MINIMUM, REWARD
from tests.service.training_run import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.service]

TORCH = next(line for line in (ROOT / "requirements/cpu.txt").read_text().splitlines() if line.startswith("torch=="))


def run(*words: object, cwd: Path, code: int = 0, timeout_s: float = 600.0, **variables: str) -> str:
    """The command's output; it must end with `code`. No variable of this environment leads into this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env={**kept, **variables}, capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "Relax"
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def python(clone: Path) -> Path:
    """An interpreter with the core alone, by `pip install -e .` from the root."""
    run(sys.executable, "-m", "venv", clone.parent / "core", cwd=clone)
    interpreter = clone.parent / "core/bin/python"
    run(interpreter, "-m", "pip", "install", "-qq", "-e", ".", cwd=clone)
    return interpreter


def test_pip_install_gives_a_command_that_checks_configurations(clone: Path, python: Path) -> None:
    relax = python.with_name("relax")
    assert "train" in run(relax, "--help", cwd=clone.parent)
    told = run(relax, "env", cwd=clone.parent, code=2)  # the core alone does not train, and is told what is missing
    assert "missing" in told and "pip install" in told
    words = [word for flag_and_value in (MINIMUM | REWARD).items() for word in flag_and_value]
    assert "= samples" in run(relax, "explain", *words, cwd=clone.parent)


def test_install_megatron_installs_the_pinned_release(clone: Path, python: Path) -> None:
    run(python, "-m", "pip", "install", "-qq", TORCH, cwd=clone)
    told = run("bash", "scripts/install_megatron.sh", cwd=clone, PYTHON=str(python), CUDA="0")
    assert "megatron-core 0.16.1" in told


def test_install_sglang_builds_an_environment_of_its_own(clone: Path) -> None:
    told = run("bash", "scripts/install_sglang.sh", cwd=clone, timeout_s=3600, BASE_PYTHON=sys.executable, CUDA="0")
    assert "sglang 0.5.23" in told
    assert (clone / ".venv-sglang/bin/python").exists()
