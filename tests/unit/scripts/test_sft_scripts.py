# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The supervised training scripts: the flags that the guide prints, folders, and what the environment changes.

As in `test_launch_scripts.py` they run with a stand-in for Python that only notes its arguments.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

from relax.config.machine import Machine
from relax.config.run import RunConfig, parse_args
from tests.unit.scripts.test_launch_scripts import ROOT, SHELLCHECK, calls, shell, stand_in

__all__ = ["stand_in"]  # a fixture

SFT = ROOT / "scripts/training/sft"
EXAMPLE = ROOT / "examples/seq_cls_sft"
MATH, MATH_VL = SFT / "run-qwen3.5-9B-math-8xgpu.sh", SFT / "run-qwen3-vl-4B-math-8xgpu.sh"
POKEMON, POKEMON_1 = SFT / "run-qwen3-vl-4B-pokemon-8xgpu.sh", SFT / "run-qwen3-vl-4B-pokemon-1xgpu.sh"
MTP = SFT / "run-qwen3.5-35B-A3B-mtp-sft-16xgpu.sh"
CLASSIFY = EXAMPLE / "run-qwen3.5-9B-classification-sft-8xgpu.sh"
CLASSIFY_LORA = EXAMPLE / "run-qwen3.5-35B-A3B-classification-lora-sft-8xgpu.sh"
SCRIPTS = (MATH, MATH_VL, POKEMON, POKEMON_1, MTP, CLASSIFY, CLASSIFY_LORA)
FOLDERS = {"EXP_DIR": "/exp", "MODEL_DIR": "/models", "DATA_DIR": "/data"}
OPTIMIZER = {"--lr": "1e-5", "--lr-decay-style": "cosine", "--weight-decay": "0.1", "--clip-grad": "1.0"}
PREDICT = {"--sft-predict-interval": "10", "--eval-temperature": "0.0"}
ROLES_8 = '{"sft": [1, 0], "actor": [1, 8], "rollout": [1, 8]}'
MATH_FLAGS = {
    **OPTIMIZER,
    **PREDICT,
    "--prompt-data": "/data/sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet",
    "--input-key": "problem",
    "--label-key": "generated_solution",
    "--eval-size": "0.01",
    "--eval-interval": "10",
    "--eval-max-response-len": "10240",
    "--num-epoch": "10",
    "--tensor-model-parallel-size": "4",
    "--pipeline-model-parallel-size": "2",
    "--context-parallel-size": "1",
    "--resource": ROLES_8,
}
POKEMON_FILES = (
    "['/data/sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_en.parquet',"
    "'/data/sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_zh.parquet']"
)
IMAGE_FLAGS = {
    "--prompt-data": POKEMON_FILES,
    "--input-key": "conversations",
    "--multimodal-keys": '{"image":"images"}',
    "--conversation-key-map": '{"from":"role","value":"content","human":"user","gpt":"assistant"}',
    "--num-epoch": "10",
}
FLAGS = {
    MATH: {**MATH_FLAGS, "--hf-checkpoint": "/models/Qwen3.5-9B"},
    MATH_VL: {**MATH_FLAGS, "--hf-checkpoint": "/models/Qwen3-VL-4B-Instruct"},
    POKEMON: {
        **IMAGE_FLAGS,
        **OPTIMIZER,
        **PREDICT,
        "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "1",
        "--context-parallel-size": "1",
        "--num-data-storage-units": "8",
        "--max-staleness": "4",
        "--sft-prefetch-buffer-size": "256",
        "--resource": ROLES_8,
    },
    POKEMON_1: {
        **IMAGE_FLAGS,
        "--lr": "3e-5",
        "--lr-decay-style": "constant",
        "--weight-decay": "0.1",
        "--clip-grad": "1.0",
        "--tensor-model-parallel-size": "1",
        "--pipeline-model-parallel-size": "1",
        "--resource": '{"sft": [1, 0], "actor": [1, 1], "rollout": [1, 1]}',
    },
    MTP: {**OPTIMIZER, "--mtp-num-layers": "1", "--mtp-loss-scaling-factor": "0.2", "--num-epoch": "10"},
    CLASSIFY: {
        "--task-type": "seq_cls",
        "--num-labels": "2",
        "--problem-type": "single_label_classification",
        "--prompt-data": "/data/sft/seq_cls/sst2/full/train.jsonl",
        "--input-key": "messages",
        "--label-key": "label",
        "--hf-checkpoint": "/models/Qwen3.5-9B",
        "--num-epoch": "10",
        "--save-interval": "100",
    },
    CLASSIFY_LORA: {
        "--task-type": "seq_cls",
        "--num-labels": "28",
        "--problem-type": "multi_label_classification",
        "--prompt-data": "/data/sft/seq_cls/go_emotions/full/train.jsonl",
        "--hf-checkpoint": "/models/Qwen3.5-35B-A3B",
        "--num-epoch": "10",
        "--save-interval": "100",
    },
}
SWITCHES = {
    POKEMON: {"--per-rank-fetch"},
    POKEMON_1: {"--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"},
    MTP: {"--enable-mtp-training"},
}
NO_ROLLOUT = (POKEMON_1, MTP, CLASSIFY, CLASSIFY_LORA)


def words_of(script: Path, python: Path, *more: str, **env: str) -> list[str]:
    (python.parent / "calls.jsonl").unlink(missing_ok=True)
    done = shell(script, "--dry-run", *more, python=python, env=env)
    assert done.returncode == 0, done.stderr
    (words,) = calls(python)
    assert words[0] == "relax/entrypoints/train.py"
    return words[1:]


def value_of(words: list[str]) -> dict[str, str]:
    return dict(itertools.pairwise(words))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_flags_are_those_of_the_guide(script: Path, stand_in: Path) -> None:
    words = words_of(script, stand_in, **FOLDERS)
    value = value_of(words)
    assert {name: value.get(name) for name in FLAGS[script]} == FLAGS[script]
    always = {"--loss-type", "--use-dynamic-batch-size", "--max-tokens-per-gpu"}
    assert {*always, *SWITCHES.get(script, ())} <= set(words)
    assert ("--sft-predict-interval" in words) == (script not in NO_ROLLOUT)
    assert value["--load"] == value["--save"]
    assert value["--save"].startswith("/exp/")
    assert value["--megatron-to-hf-mode"] == "bridge"
    assert os.access(script, os.X_OK)


def config_of(script: Path, python: Path, *more: str, gpus: int = 8, **env: str) -> RunConfig:
    return parse_args(
        words_of(script, python, *more, **{**FOLDERS, **env}), machine=Machine(gpus=gpus, sglang=gpus > 0)
    )


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_describes_the_run_of_its_name(script: Path, gpus: int, stand_in: Path) -> None:
    """Actor and rollout share cards: the number in the name is the larger one, not the sum."""
    config = config_of(script, stand_in, gpus=gpus)
    assert config.needed_gpus == int(re.search(r"-(\d+)xgpu", script.stem)[1])  # type: ignore[index]
    assert config.algorithm.loss_type == "sft"
    assert config.external.megatron("num-layers"), "the model file was not sourced"
    assert config.optimizer_offload == (script == POKEMON_1)


def test_no_two_scripts_write_to_one_folder(stand_in: Path) -> None:
    folders = {value_of(words_of(script, stand_in, **FOLDERS))["--save"] for script in SCRIPTS}
    assert len(folders) == len(SCRIPTS)


@pytest.mark.parametrize("script", [MATH, MATH_VL, POKEMON, POKEMON_1, CLASSIFY, CLASSIFY_LORA], ids=lambda p: p.stem)
def test_the_model_folder_must_be_named_and_data_stands_beside_the_script(script: Path, stand_in: Path) -> None:
    model = FLAGS[script].get("--hf-checkpoint", "/models/Qwen3-VL-4B-Instruct").removeprefix("/models/")
    done = shell(script, "--dry-run", python=stand_in, env={"EXP_DIR": "/exp"})
    assert (done.returncode, calls(stand_in)) == (2, [])
    assert f"export MODEL_DIR=...   # the folder that holds {model}/" in done.stderr
    value = value_of(words_of(script, stand_in, EXP_DIR="/exp", MODEL_DIR="/models"))
    assert value["--hf-checkpoint"] == f"/models/{model}"
    assert f"{script.parent}/data/sft/" in value["--prompt-data"]


def test_one_variable_sets_the_folders_of_the_mtp_script(stand_in: Path) -> None:
    value = value_of(words_of(MTP, stand_in, EXP_DIR="/exp"))
    assert value["--hf-checkpoint"] == "/exp/Qwen3.5-35B-A3B"
    assert value["--prompt-data"] == "/exp/sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet"
    done = shell(MTP, "--dry-run", python=stand_in, env={"EXP_DIR": "/exp", "MODEL_DIR": "/m"})
    assert "EXP_DIR=/exp MODEL_DIR=/m DATA_DIR=/exp" in done.stderr


def test_the_environment_changes_the_mtp_script(stand_in: Path) -> None:
    changed = {
        "MTP_NUM_LAYERS": "--mtp-num-layers", "MTP_LOSS_SCALING_FACTOR": "--mtp-loss-scaling-factor",
        "NUM_EPOCH": "--num-epoch", "GLOBAL_BATCH_SIZE": "--global-batch-size",
        "MAX_TOKENS_PER_GPU": "--max-tokens-per-gpu", "LR": "--lr", "SAVE_INTERVAL": "--save-interval",
        "TP_SIZE": "--tensor-model-parallel-size", "PP_SIZE": "--pipeline-model-parallel-size",
        "EP_SIZE": "--expert-model-parallel-size", "CP_SIZE": "--context-parallel-size",
        "PROMPT_DATA": "--prompt-data",
    }  # fmt: skip
    given = {name: str(7 + place) for place, name in enumerate(changed)}
    value = value_of(words_of(MTP, stand_in, **FOLDERS, **given))
    assert {name: value[flag] for name, flag in changed.items()} == given


@pytest.mark.parametrize("script", [MATH, MATH_VL, POKEMON], ids=lambda path: path.stem)
@pytest.mark.parametrize("block", ["PREDICT_ARGS", "EVAL_ARGS"])
def test_a_block_that_is_commented_out_leaves_a_working_script(
    script: Path, block: str, stand_in: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "scripts/training/sft" / script.name
    copy.parent.mkdir(parents=True)
    (tmp_path / "scripts/entrypoint").symlink_to(ROOT / "scripts/entrypoint")
    body = re.search(rf"^{block}=\(\n.*?^\)$", script.read_text(), re.MULTILINE | re.DOTALL)[0]  # type: ignore[index]
    commented = "\n".join(f"# {line}" for line in body.splitlines())
    copy.write_text(script.read_text().replace(body, commented))
    words = words_of(copy, stand_in, MODEL_CONFIG_DIR=str(ROOT / "scripts/models"), **FOLDERS)
    gone = {"PREDICT_ARGS": "--sft-predict-interval", "EVAL_ARGS": "--eval-size"}[block]
    assert gone not in words
    assert "--resource" in words


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            {"CLASSIFICATION_DATASET": "ag_news", "DATA_SUBSET": "smoke"},
            ["4", "single_label_classification", "/data/sft/seq_cls/ag_news/smoke/train.jsonl"],
        ),
        (
            {"CLASSIFICATION_DATASET": "go_emotions", "DATA_SUBSET": "extended"},
            ["28", "multi_label_classification", "/data/sft/seq_cls/go_emotions/extended/train.jsonl"],
        ),
        (
            {
                "CLASSIFICATION_DATASET": "mine",
                "TRAIN_DATA": "/my/a.jsonl",
                "EVAL_DATA": "/my/b.jsonl",
                "NUM_LABELS": "9",
                "PROBLEM_TYPE": "multi_label_classification",
            },
            ["9", "multi_label_classification", "/my/a.jsonl"],
        ),
    ],
)
@pytest.mark.parametrize("script", [CLASSIFY, CLASSIFY_LORA], ids=lambda path: path.stem)
def test_the_environment_chooses_data_and_classes(
    script: Path, env: dict[str, str], expected: list[str], stand_in: Path
) -> None:
    words = words_of(script, stand_in, **FOLDERS, **env)
    value = value_of(words)
    assert [value[name] for name in ("--num-labels", "--problem-type", "--prompt-data")] == expected
    place = words.index("--eval-prompt-data")
    evaluation = env.get("EVAL_DATA", expected[2].replace("train.jsonl", "eval.jsonl"))
    assert words[place + 1 : place + 3] == [env["CLASSIFICATION_DATASET"], evaluation]
    assert env["CLASSIFICATION_DATASET"] in value["--save"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"CLASSIFICATION_DATASET": "imdb"}, "is not one of sst2, ag_news, go_emotions; for data of your own set"),
        ({"DATA_SUBSET": "half"}, "DATA_SUBSET=half is not one of full, smoke, extended"),
    ],
)
def test_unknown_data_is_told(env: dict[str, str], message: str, stand_in: Path) -> None:
    done = shell(CLASSIFY, "--dry-run", python=stand_in, env={**FOLDERS, **env})
    assert (done.returncode, calls(stand_in)) == (2, [])
    assert message in done.stderr


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed: make dev")
def test_the_example_scripts_pass_shellcheck() -> None:
    files = map(str, sorted(EXAMPLE.glob("*.sh")))
    done = subprocess.run(
        [str(SHELLCHECK), "--exclude=SC1091,SC2034", *files], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


def test_the_readme_names_every_variable_of_the_classification_scripts() -> None:
    texts = [path.read_text() for path in sorted(EXAMPLE.glob("*.sh"))]
    variables = {name for text in texts for name in re.findall(r"\$\{([A-Z][A-Z_]+):-", text)}
    readme = (EXAMPLE / "README.md").read_text()
    assert len(variables) > 12
    assert sorted(name for name in variables if f"`{name}`" not in readme) == []
