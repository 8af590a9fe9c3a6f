# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax env` on package sets that are made up: what is missing, what is in conflict, and the command for it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from relax.entrypoints import env
from relax.entrypoints.env import GROUPS, find_conflicts, fixes, look, pinned_version, requirements

ROOT = Path(__file__).parents[3]
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


def groups(**needs: str) -> dict[str, list[Requirement]]:
    return {group: [Requirement(text) for text in line.split()] for group, line in needs.items()}


def test_this_checkout_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine that runs the tests has all that they need."""
    assert env.main([]) == 0
    text = capsys.readouterr().out
    assert text.endswith("training can start\n")
    assert re.search(r"^train +transformers +5\.", text, re.MULTILINE)


def test_json_holds_the_same_as_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert env.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"relax", "python", "cpus", "memory_bytes", "gpus", "packages", "conflicts", "fixes", "ready"} <= set(found)
    torch = next(package for package in found["packages"] if package["name"] == "torch")
    assert (torch["group"], torch["state"], torch["tested"]) == ("train", "ok", pinned_version("torch", "train", ROOT))


def test_every_extra_that_needs_installing_is_looked_at() -> None:
    wanted = requirements(ROOT)
    assert set(wanted) == set(GROUPS)
    assert all(wanted.values())
    assert {need.name for need in wanted["ray"]} >= {"ray", "TransferQueue", "sglang-router"}


def test_a_needed_package_that_is_missing_stops_training_and_an_optional_one_does_not(tmp_path: Path) -> None:
    wanted = groups(core="numpy>=1", train="torch>=2.11", wandb="wandb")
    lacks = {"torch": None, "numpy": "2.0", "wandb": None}
    found = look(wanted, lacks.get, tmp_path)
    assert {package.name: package.state for package in found.packages} == {
        "numpy": "ok", "torch": "missing", "wandb": "missing",
    }  # fmt: skip
    assert not found.ready
    pip = f"{sys.executable} -m pip install"
    assert found.fixes == (
        f"{pip} 'relax-rl[train]'   # train: torch",
        f"{pip} 'relax-rl[wandb]'   # optional, wandb: wandb",
    )
    assert look(wanted, (lacks | {"torch": "2.12"}).get, tmp_path).ready


def test_a_package_that_is_too_old_is_a_conflict(tmp_path: Path) -> None:
    found = look(groups(core="numpy>=1.26"), {"numpy": "1.25.2"}.get, tmp_path)
    assert [(package.state, package.installed) for package in found.packages] == [("conflict", "1.25.2")]
    assert not found.ready
    assert "conflict" in env.text_of(found)


def test_packages_that_exclude_each_other_are_found_through_what_they_require() -> None:
    """sglang wants one transformers, and its dependency b another tokenizers; extras are not asked."""
    versions = {"sglang": "0.5", "transformers": "5.24", "b": "1.0", "tokenizers": "0.22"}
    others = ["absent>9", 'tokenizers>9; extra == "dev"', 'tokenizers>9; os_name == "nt"']
    needs = {"sglang": ["transformers==5.19", "b", *others], "b": ["tokenizers<0.21"]}
    found = list(find_conflicts({"sglang"}, versions.get, lambda name: needs.get(name, [])))
    assert {(item.package, item.requires, item.installed) for item in found} == {
        ("sglang 0.5", "transformers==5.19", "5.24"),
        ("b 1.0", "tokenizers<0.21", "0.22"),
    }
    (command,) = fixes((), found[:1], ROOT)
    assert f"-m pip install '{found[0].requires}'" in command


def test_sglang_in_its_own_environment_is_a_flag_and_no_installation(tmp_path: Path) -> None:
    (tmp_path / ".venv-sglang/bin").mkdir(parents=True)
    (tmp_path / env.SGLANG_PYTHON).touch()
    (fix,) = look(groups(sglang="sglang>=0.5.2"), {}.get, tmp_path).fixes
    assert fix.startswith("--sglang-python .venv-sglang/bin/python")


def test_the_page_names_the_versions_that_the_tests_run_with() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| ([\w.-]+) \| ([\w.-]+) \|$", (ROOT / "docs/installation.md").read_text(), re.M)
    assert len(rows) > 8
    for name, trainer, sglang in rows:
        pins = (pinned_version(name, "train", ROOT), pinned_version(name, "sglang", ROOT))
        if name == "torchvision":  # has a file of its own, for it is installed last
            pins = ((ROOT / "requirements/torchvision.txt").read_text().rpartition("==")[2].strip(), pins[1])
        assert (trainer, sglang) == tuple(pin or "-" for pin in pins), name


@pytest.mark.parametrize("script", ["install_megatron.sh", "install_sglang.sh"])
@pytest.mark.parametrize("cuda", ["0", "1"])
def test_an_install_script_tells_what_it_would_do(script: str, cuda: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "BASE_PYTHON": sys.executable, "CUDA": cuda}
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / script), "--dry-run"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    package = "megatron-core==0.16.1" if "megatron" in script else "sglang"
    if (script, cuda) == ("install_megatron.sh", "1") and done.returncode:
        assert "Transformer Engine is built with nvcc" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
    assert f"+ {sys.executable}" in done.stderr or "+ make" in done.stderr
    assert package in done.stderr
    assert done.stdout == ""  # nothing ran


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: make dev")
def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run([str(HADOLINT), str(ROOT / "docker/Dockerfile")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
