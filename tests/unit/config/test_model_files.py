# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`scripts/models/`: each file is what the tool makes of the model's configuration, and each is accepted as flags."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from relax.config.external.architecture import architecture_differences
from relax.config.external.describe import FAMILIES, ORDER, describe, model_type, text_config
from relax.config.external.tables import table
from relax.config.machine import Machine
from relax.config.run import parse_args
from relax.utils.errors import ConfigError
from scripts.tools.make_model_args import main, model_file

ROOT = Path(__file__).parents[3]
FILES = ROOT / "scripts" / "models"
CONFIGS = Path(__file__).parent / "model_configs"  # the architecture keys of the published config.json files
MODELS = sorted(path.stem for path in CONFIGS.glob("*.json"))
OTHER_NAMES = {
    "qwen35-9B": "qwen3.5-9B",
    "qwen35-35B-A3B": "qwen3.5-35B-A3B",
    "qwen36-35B-A3B": "qwen3.6-35B-A3B",
    "qwen3-30B-A3B-omni": "qwen3-omni-30B-A3B",
}
BASE = (
    "--hf-checkpoint m --prompt-data p --num-rollout 1 --rollout-batch-size 4 --n-samples-per-prompt 2 --rm-type math"
)


def read(model: str) -> dict:
    return json.loads((CONFIGS / f"{model}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def arrays() -> dict[str, list[str]]:
    """{model file: words of MODEL_ARGS}, by one bash that sources every file as a launch script does."""
    script = """
        set -euo pipefail
        for file in "${MODEL_CONFIG_DIR}"/*.sh; do
            unset MODEL_ARGS
            source "${file}"
            printf '%s\\0' "$(basename "${file}" .sh)" "${#MODEL_ARGS[@]}" "${MODEL_ARGS[@]}"
        done
    """
    done = subprocess.run(
        ["bash", "-c", script], env={"MODEL_CONFIG_DIR": str(FILES), "PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    words = iter(done.stdout.decode().split("\0")[:-1])
    return {name: [next(words) for _ in range(int(next(words)))] for name in words}


def test_every_file_has_a_configuration_to_check_it_against() -> None:
    assert sorted(path.stem for path in FILES.glob("*.sh")) == sorted([*MODELS, *OTHER_NAMES])


@pytest.mark.parametrize("model", MODELS)
def test_a_file_is_what_the_tool_makes_of_the_configuration(model: str) -> None:
    config = read(model)
    assert (FILES / f"{model}.sh").read_text("utf-8") == model_file(config, config["_name_or_path"])


@pytest.mark.parametrize("model", [*MODELS, *OTHER_NAMES])
def test_a_file_is_accepted_by_fsdp_and_agrees_with_its_model(model: str, arrays, tmp_path) -> None:
    config = parse_args([*BASE.split(), *arrays[model]], machine=Machine())
    (tmp_path / "config.json").write_text(json.dumps(read(OTHER_NAMES.get(model, model))))
    assert architecture_differences(config.external, tmp_path) == []


def test_other_names_hold_the_same_array(arrays) -> None:
    for other, name in OTHER_NAMES.items():
        assert arrays[other] == arrays[name]


def test_the_file_of_qwen3_4b_holds_the_documented_array(arrays) -> None:
    documented = """
        --swiglu
        --num-layers 36
        --hidden-size 2560
        --ffn-hidden-size 9728
        --num-attention-heads 32
        --group-query-attention
        --num-query-groups 8
        --use-rotary-position-embeddings
        --disable-bias-linear
        --normalization RMSNorm
        --norm-epsilon 1e-6
        --rotary-base 1000000
        --vocab-size 151936
        --kv-channels 128
        --qk-layernorm
    """
    assert arrays["qwen3-4B"] == documented.split()
    text = (FILES / "qwen3-4B.sh").read_text("utf-8")
    assert "MODEL_ARGS=(\n   --swiglu\n   --num-layers 36\n" in text
    assert '\n   --normalization "RMSNorm"\n' in text


@pytest.mark.parametrize("other", ["qwen3-8B", "qwen3-4B-2507", "qwen3.5-9B", "llama3-8B", "glm4.7-30B-A3B"])
def test_the_file_of_another_model_is_found(other: str, arrays, tmp_path) -> None:
    config = parse_args([*BASE.split(), *arrays["qwen3-4B"]], machine=Machine())
    (tmp_path / "config.json").write_text(json.dumps(read(other)))
    assert len(architecture_differences(config.external, tmp_path)) == 1


def test_every_flag_of_the_order_is_megatrons() -> None:
    assert sorted(set(ORDER) - set(table("megatron"))) == []
    assert len(ORDER) == len(set(ORDER))


def test_values_have_the_type_that_megatron_reads() -> None:
    kinds = {"int": int, "float": (int, float), "str": str, "switch": bool}
    for model in MODELS:
        for flag, fact in describe(read(model)).items():
            values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
            wanted = kinds[table("megatron")[flag]["type"]]
            assert all(isinstance(value, wanted) for value in values), (model, flag, fact)


def test_every_family_that_is_known_has_a_file() -> None:
    used = {model_type(text_config(read(model))) for model in MODELS}
    assert set(FAMILIES) - used == {"deepseek_v3", "qwen2_5_vl"}


class TestTool:
    """`make_model_args.py` on a model folder."""

    def folder(self, tmp_path, **changes) -> Path:
        folder = tmp_path / "my-model"
        folder.mkdir()
        config = {k: v for k, v in (read("qwen3-0.6B") | changes).items() if v is not None}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def test_it_prints_the_file_or_writes_it(self, tmp_path, capsys) -> None:
        folder = self.folder(tmp_path)
        assert main([str(folder)]) == 0
        assert capsys.readouterr().out == (FILES / "qwen3-0.6B.sh").read_text("utf-8")
        assert main([str(folder / "config.json"), "--name", "mine", "-o", str(tmp_path / "mine.sh")]) == 0
        assert "\n# mine: architecture flags" in (tmp_path / "mine.sh").read_text("utf-8")

    def test_the_folder_names_a_model_that_has_no_name(self, tmp_path, capsys) -> None:
        assert main([str(self.folder(tmp_path, _name_or_path=None))]) == 0
        assert "\n# my-model: architecture flags" in capsys.readouterr().out

    def test_a_model_type_that_is_not_known_is_an_error(self, tmp_path, capsys) -> None:
        assert main([str(self.folder(tmp_path, model_type="gpt7"))]) == 2
        assert "model_type 'gpt7' is not one whose architecture flags can be told" in capsys.readouterr().err

    def test_a_configuration_that_does_not_say_enough_is_an_error(self) -> None:
        config = {key: value for key, value in read("qwen3-0.6B").items() if key != "vocab_size"}
        with pytest.raises(
            ConfigError, match=r"does not tell --vocab-size; of the language model it has .*hidden_size"
        ):
            model_file(config, "x")

    def test_a_path_that_is_no_model_is_an_error(self, tmp_path, capsys) -> None:
        assert main([str(tmp_path)]) == 2
        assert "neither a model folder with a config.json nor a file" in capsys.readouterr().err
        (tmp_path / "config.json").write_text("{")
        assert main([str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith("make_model_args: Expecting property name")
