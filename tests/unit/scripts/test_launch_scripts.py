# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Training scripts and entry points: what they hand to the training command, and what they refuse.

The scripts run with a stand-in for Python that only notes its arguments, so that dozens of them parse in seconds.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relax.config.machine import Machine
from relax.config.run import RunConfig, parse_args

ROOT = Path(__file__).parents[3]
TRAINING = sorted(path for kind in ("text", "multimodal") for path in (ROOT / "scripts/training" / kind).glob("*.sh"))
ENTRYPOINTS = ROOT / "scripts/entrypoint"
SCRIPT = ROOT / "scripts/training/text/run-qwen3-4B-8xgpu.sh"
VARIABLES = """
    EXP_DIR MODEL_DIR DATA_DIR MODEL_CONFIG_DIR PROMPT_SET EVAL_SET NUM_ROLLOUT PROJECT_NAME RUN_NAME SYSTEM_PROMPT
    RELAX_ENTRYPOINT RELAX_JOB_ADDRESS MASTER_ADDR POD_NAME HOST_IP WORLD_SIZE NUM_GPUS RAY_ADDRESS RAY_AUTH_MODE
    RAY_AUTH_TOKEN RAY_AUTH_TOKEN_PATH
""".split()  # noqa: SIM905
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """An interpreter that appends its arguments, each call as one JSON line, to a file beside it."""
    path = tmp_path / "python"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"with open({str(tmp_path / 'calls.jsonl')!r}, 'a') as file:\n"
        "    file.write(json.dumps(sys.argv[1:]) + '\\n')\n"
    )
    path.chmod(0o755)
    return path


def shell(*words: object, python: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script with none of the caller's own launch variables."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        ["bash", *map(str, words)],
        env={**kept, "PYTHON": str(python), **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


def calls(python: Path) -> list[list[str]]:
    file = python.parent / "calls.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def flags_of(script: Path, python: Path, *more: str, env: dict[str, str] | None = None) -> list[str]:
    """The flags that a script hands to the training command."""
    done = shell(script, "--dry-run", *more, python=python, env=env)
    assert done.returncode == 0, done.stderr
    (words,) = calls(python)
    assert words[0] == "relax/entrypoints/train.py"
    return words[1:]


def config_of(script: Path, python: Path, *, gpus: int) -> RunConfig:
    machine = Machine(gpus=min(gpus, 8), sglang=gpus > 0)
    return parse_args(flags_of(script, python, env={"EXP_DIR": "/exp"}), machine=machine)


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("script", TRAINING, ids=lambda path: path.stem)
def test_each_training_script_describes_the_run_of_its_name(script: Path, gpus: int, stand_in: Path) -> None:
    config = config_of(script, stand_in, gpus=gpus)
    cards = int(re.search(r"-(\d+)xgpu", script.stem)[1])  # type: ignore[index]
    assert config.needed_gpus == cards
    assert config.cluster.dry_run
    expected = "hybrid" if "hybrid" in script.stem else "fully_async" if "-async" in script.stem else "colocate"
    assert config.mode == expected
    assert config.cluster.max_staleness == (0 if expected == "colocate" else 1)
    assert (config.data.multimodal_keys is not None) == (script.parent.name == "multimodal")
    assert config.external.megatron("num-layers"), "the model file was not sourced"
    assert config.rollout.rollout_backend == ("sglang" if gpus else "native")
    assert config.samples_per_rollout == config.global_batch_size == 256
    assert str(config.checkpoint.hf_checkpoint).startswith("/exp/")
    assert config.checkpoint.load == config.checkpoint.save
    assert os.access(script, os.X_OK)


def test_no_two_scripts_write_to_one_folder(stand_in: Path) -> None:
    folders = []
    for script in TRAINING:
        (stand_in.parent / "calls.jsonl").unlink(missing_ok=True)
        flags = flags_of(script, stand_in, env={"EXP_DIR": "/exp"})
        folders.append(flags[flags.index("--save") + 1])
    assert len(set(folders)) == len(TRAINING) >= 10


@pytest.mark.parametrize(
    ("given", "model", "data", "save"),
    [
        ({}, ROOT.parent, ROOT.parent, ROOT.parent),  # /root of /root/Relax
        ({"EXP_DIR": "/exp"}, "/exp", "/exp", "/exp"),
        ({"EXP_DIR": "/exp", "MODEL_DIR": "/models"}, "/models", "/exp", "/exp"),
        ({"EXP_DIR": "/exp", "DATA_DIR": "/data/"}, "/exp", "/data", "/exp"),
        ({"MODEL_DIR": "models", "DATA_DIR": "/data"}, ROOT / "models", "/data", ROOT.parent),
    ],
)
def test_one_variable_sets_three_folders_and_each_can_be_set_alone(
    given: dict[str, str], model: object, data: object, save: object, stand_in: Path
) -> None:
    done = shell(SCRIPT, "--dry-run", python=stand_in, env=given)
    (words,) = calls(stand_in)
    value = dict(itertools.pairwise(words))
    assert value["--hf-checkpoint"] == value["--ref-load"] == f"{model}/Qwen3-4B/"
    assert value["--prompt-data"] == f"{data}/dapo-math-17k/dapo-math-17k.jsonl"
    assert value["--save"] == f"{save}/relax-text/qwen3-4B/"
    assert f"EXP_DIR={save} MODEL_DIR={model} DATA_DIR={data}" in done.stderr


def test_model_files_come_from_model_config_dir(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "qwen3-4B.sh").write_text("MODEL_ARGS=(--num-layers 3)\n")
    flags = flags_of(SCRIPT, stand_in, env={"MODEL_CONFIG_DIR": str(tmp_path)})
    assert flags[flags.index("--num-layers") + 1] == "3"
    (tmp_path / "qwen3-4B.sh").unlink()
    done = shell(SCRIPT, "--dry-run", python=stand_in, env={"MODEL_CONFIG_DIR": str(tmp_path)})
    assert done.returncode != 0
    assert f"{tmp_path}/qwen3-4B.sh: No such file" in done.stderr


def test_flags_behind_the_script_follow_its_own_so_that_they_win(stand_in: Path) -> None:
    flags = flags_of(SCRIPT, stand_in, "--num-rollout", "7", env={"NUM_ROLLOUT": "5"})
    assert [flags[i + 1] for i, word in enumerate(flags) if word == "--num-rollout"] == ["5", "7"]


@pytest.mark.parametrize("entry", ["local.sh", "ray-job.sh", "spmd-multinode.sh"])
@pytest.mark.parametrize("flag", ["--dry-run", "--help"])
def test_a_report_through_an_entry_point_starts_no_ray(entry: str, flag: str, stand_in: Path) -> None:
    """Not even the variables of several machines are asked for, and nothing but the training command is called."""
    done = shell(ENTRYPOINTS / entry, SCRIPT, flag, python=stand_in)
    assert done.returncode == 0, done.stderr
    (words,) = calls(stand_in)
    assert (words[0], words[-1]) == ("relax/entrypoints/train.py", flag)


@pytest.mark.parametrize("entry", ["local.sh", "ray-job.sh", "spmd-multinode.sh"])
def test_an_entry_point_without_a_script_says_how_it_is_called(entry: str, stand_in: Path) -> None:
    done = shell(ENTRYPOINTS / entry, python=stand_in)
    assert (done.returncode, calls(stand_in)) == (2, [])
    assert f"{entry} SCRIPT [FLAGS...]" in done.stderr
    done = shell(ENTRYPOINTS / entry, "missing.sh", python=stand_in)
    assert done.returncode == 2
    assert "there is no file missing.sh" in done.stderr


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, ["MASTER_ADDR", "POD_NAME", "HOST_IP"]),
        ({"POD_NAME": "node-0"}, ["MASTER_ADDR", "HOST_IP"]),
        ({"MASTER_ADDR": "node-0", "POD_NAME": "node-1"}, ["HOST_IP"]),
    ],
)
def test_all_missing_variables_of_several_machines_are_told_at_once(
    given: dict[str, str], missing: list[str], stand_in: Path
) -> None:
    done = shell(ENTRYPOINTS / "spmd-multinode.sh", SCRIPT, python=stand_in, env=given)
    assert (done.returncode, calls(stand_in)) == (2, [])
    assert re.findall(r"export (\w+)=", done.stderr) == missing


@pytest.mark.parametrize("name", ["WORLD_SIZE", "NUM_GPUS"])
def test_numbers_of_machines_and_cards_are_whole(name: str, stand_in: Path) -> None:
    given = {"MASTER_ADDR": "a", "POD_NAME": "b", "HOST_IP": "127.0.0.1", name: "two"}
    done = shell(ENTRYPOINTS / "spmd-multinode.sh", SCRIPT, python=stand_in, env=given)
    assert (done.returncode, calls(stand_in)) == (2, [])
    assert f"{name}=two must be a whole number" in done.stderr


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed: make dev")
def test_shell_scripts_pass_shellcheck() -> None:
    scripts = sorted((ROOT / "scripts").glob("**/*.sh"))
    done = subprocess.run(
        [str(SHELLCHECK), "--exclude=SC1091", *map(str, scripts)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout


def test_no_script_ends_processes_by_name() -> None:
    for script in [*(ROOT / "scripts").glob("**/*.sh"), *(ROOT / "docker").glob("*")]:
        text = re.sub(r"^\s*#.*", "", script.read_text(), flags=re.MULTILINE)
        assert not re.search(r"\b(pkill|killall|ray stop|fuser)\b|\bkill\b.*\bpgrep\b", text), script
