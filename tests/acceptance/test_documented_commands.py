# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Promises that milliseconds show: documented flags, pages, files and variables. Test ids are lines of the list."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from relax.config.machine import Machine
from relax.config.run import parse_args
from tests.documented_commands import MINIMUM

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/training/multimodal/run-qwen3-vl-4B-8xgpu.sh"
TEXT_SCRIPT = "scripts/training/text/run-qwen3-4B-8xgpu.sh"

# {line: (what is typed, name of the value, value)}; a flag as name is one of Megatron's
FLAGS: dict[int, tuple[str, str, Any]] = {
    6: ("", "megatron_to_hf_mode", "bridge"),
    12: ("--swiglu", "--swiglu", True),
    13: ("--num-layers 36", "--num-layers", 36),
    14: ("--hidden-size 2560", "--hidden-size", 2560),
    15: ("--ffn-hidden-size 9728", "--ffn-hidden-size", 9728),
    16: ("--num-attention-heads 32", "--num-attention-heads", 32),
    17: ("--group-query-attention", "--group-query-attention", True),
    18: ("--num-query-groups 8", "--num-query-groups", 8),
    19: ("--use-rotary-position-embeddings", "--use-rotary-position-embeddings", True),
    20: ("--disable-bias-linear", "--disable-bias-linear", True),
    21: ("--normalization RMSNorm", "--normalization", "RMSNorm"),
    22: ("--norm-epsilon 1e-6", "--norm-epsilon", 1e-6),
    23: ("--rotary-base 1000000", "--rotary-base", 1000000),
    24: ("--vocab-size 151936", "--vocab-size", 151936),
    25: ("--kv-channels 128", "--kv-channels", 128),
    26: ("--qk-layernorm", "--qk-layernorm", True),
    37: ("--input-key prompt", "input_key", "prompt"),
    38: ("--label-key label", "label_key", "label"),
    39: ("--apply-chat-template", "apply_chat_template", True),
    40: (
        '--multimodal-keys {"image":"image_key","audio":"audio_key","video":"video_key"}',
        "multimodal_keys",
        {"image": "image_key", "audio": "audio_key", "video": "video_key"},
    ),
    69: ("--max-turns 5", "max_turns", 5),
    83: ("--save /path/checkpoint/", "save", "/path/checkpoint/"),
    84: ("--save-interval 20 --save out", "save_interval", 20),
    89: ("--prompt-data /root/prompts.jsonl", "prompt_data", "/root/prompts.jsonl"),
    90: ("--rollout-batch-size 32", "rollout_batch_size", 32),
    91: ("--n-samples-per-prompt 8", "n_samples_per_prompt", 8),
    92: ("--rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256", "global_batch_size", 256),
    93: ("--num-rollout 200", "num_rollout", 200),
    94: ("--rm-type openr1mm", "rm_type", "openr1mm"),
    95: ('--multimodal-keys {"image":"image"}', "multimodal_keys", {"image": "image"}),
    98: ("--eval-interval 5 --eval-prompt-data aime a.jsonl", "eval_interval", 5),
    100: ("--n-samples-per-eval-prompt 16", "n_samples_per_eval_prompt", 16),
    101: ("--eval-max-response-len 16384", "eval_max_response_len", 16384),
    102: ("--eval-top-p 0.7", "eval_top_p", 0.7),
    104: ("--use-clearml", "use_clearml", True),
    105: ("--use-tensorboard", "use_tensorboard", True),
    106: ("--use-metrics-service", "use_metrics_service", True),
    111: ("--sequence-parallel", "--sequence-parallel", True),
    112: ("--pipeline-model-parallel-size 1", "--pipeline-model-parallel-size", 1),
    114: ("--recompute-granularity full", "--recompute-granularity", "full"),
    115: ("--recompute-method uniform", "--recompute-method", "uniform"),
    116: ("--recompute-num-layers 1", "--recompute-num-layers", 1),
    120: ("--rollout-num-gpus-per-engine 2 --rollout-num-gpus 4", "rollout_num_gpus_per_engine", 2),
    122: ("--use-dynamic-batch-size --max-tokens-per-gpu 9216", "use_dynamic_batch_size", True),
    123: ("--micro-batch-size 4", "micro_batch_size", 4),
    124: ("--use-dynamic-batch-size --max-tokens-per-gpu 9216", "max_tokens_per_gpu", 9216),
    129: ("--max-staleness 0", "max_staleness", 0),
    130: ("--num-data-storage-units 1", "num_data_storage_units", 1),
    131: ("--colocate", "colocate", True),
    181: ("--advantage-estimator grpo", "advantage_estimator", "grpo"),
    182: ("--advantage-estimator gspo", "advantage_estimator", "gspo"),
    183: ("--advantage-estimator sapo", "advantage_estimator", "sapo"),
    188: ("--use-wandb", "use_wandb", True),
    189: ("", "use_tensorboard", True),
    190: ("--use-clearml", "use_clearml", True),
    269: ("", "use_tensorboard", True),
    341: ("--megatron-to-hf-mode bridge", "megatron_to_hf_mode", "bridge"),
    342: ("--save /path/checkpoint/", "save", "/path/checkpoint/"),
    343: ("--save-interval 20 --save out", "save_interval", 20),
}

# {line: (file, what must stand in it)}
PAGES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("README.md", ("[Installation](docs/installation.md)",)),
    2: ("docs/models.md", ("hf download Qwen/Qwen3-VL-4B-Instruct --local-dir /root/Qwen3-VL-4B-Instruct",)),
    3: ("docs/models.md", ("Hugging Face", "ModelScope", "data sets")),
    7: ("docs/quickstart.md", ("## Export the model", "--save-hf", "Megatron")),
    29: ("docs/models.md", ("With Megatron Bridge a model also needs a bridge there",)),
    77: (SCRIPT, ('SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"',)),
    79: (SCRIPT, ("CKPT_ARGS=(", '"${CKPT_ARGS[@]}"')),
    97: (TEXT_SCRIPT, ("VAL_ARGS=(", '"${VAL_ARGS[@]}"')),
    144: (
        "docs/launching.md",
        ("who starts and ends Ray", "spmd-multinode.sh", "ray-job.sh", "on each machine", "once"),
    ),
    290: ("docs/sft-data.md", ("export DATA_DIR=/root", 'mkdir -p "${DATA_DIR}/sft/data"')),
    292: (
        "docs/sft-data.md",
        (
            "hf download --repo-type dataset unsloth/OpenMathReasoning-mini data/cot-00000-of-00001.parquet",
            '--local-dir "${DATA_DIR}/sft/data/OpenMathReasoning-mini"',
        ),
    ),
    297: (
        "docs/sft-data.md",
        (
            "hf download --repo-type dataset llamafactory/pokemon-gpt4o-captions pokemon_gpt4o_en.parquet",
            '--local-dir "${DATA_DIR}/sft/data/pokemon-gpt4o-captions"',
        ),
    ),
    145: ("docs/models.md", ("changing the model is changing that one flag", "--hf-checkpoint")),
    146: (
        "examples/deepeyes/README.md",
        ("# DeepEyes", "--custom-rm-path examples.deepeyes.reward_deepeyes.reward_func", "--reward-key score"),
    ),
    148: ("docs/architecture.md", ("# Architecture",)),
    149: ("docs/data.md", ("# Data", "## Columns", "## Order, streaming, resume")),
    150: ("docs/distributed-checkpoint.md", ("# Distributed checkpoint", "Any number of ranks loads it", "DCS")),
    151: ("docs/troubleshooting.md", ("`ray status`", "`ray stop`", "`ray start --head`")),
    152: ("docs/troubleshooting.md", ("CUDA out of memory", "--global-batch-size 128", "--rollout-batch-size 16")),
    153: ("docs/troubleshooting.md", ("tail -f /tmp/ray/session_latest/logs/serve/*.log",)),
    154: (
        "docs/troubleshooting.md",
        (
            "https://github.com/redai-infra/Relax/issues",
            "https://github.com/redai-infra/Relax/discussions",
            "[Introduction](../README.md)",
        ),
    ),
    155: ("README.md", ("Reinforcement Engine Leveraging Agentic X-modality",)),
    220: ("docs/installation.md", ("8 GPUs", "80 GB", "32 CPU cores", "256 GB of memory", "1 TB of disk")),
    221: ("docs/installation.md", ("several nodes with 16 GPUs and RDMA",)),
    222: ("docs/installation.md", ("3.12", "CUDA 12.1", "cuDNN 8.9", "NCCL 2.18")),
    224: ("docs/installation.md", ("git clone https://github.com/redai-infra/Relax.git cd Relax pip install -e .",)),
    243: ("docs/aliases.md", ("ray start --head --node-ip-address=192.168.1.100 --port=6379",)),
    244: ("docs/aliases.md", ("ray start --address=192.168.1.100:6379",)),
    274: ("README.md", ("https://github.com/redai-infra/Relax", "https://arxiv.org/pdf/2604.11554")),
    288: ("docs/models.md", ("`qwen3.5-9B`", "`qwen3.5-35B-A3B`", "`qwen3-vl-4B`")),
    306: ("docs/models.md", ("hf download Qwen/Qwen3.5-9B --local-dir /root/Qwen3.5-9B",)),
    307: ("docs/models.md", ("hf download Qwen/Qwen3-VL-4B-Instruct --local-dir /root/Qwen3-VL-4B-Instruct",)),
    448: ("docs/performance-tuning.md", ("# Performance tuning", "`--max-tokens-per-gpu`", "relax explain")),
    449: ("docs/oom.md", ("# OOM troubleshooting", "`--max-tokens-per-gpu`", "`--recompute-granularity full`")),
    157: ("docs/claims.md", ("76 % faster than synchronous on 16 H800", "not on GPUs")),
    162: ("docs/claims.md", ("Redundant vision parameters are 1 to 5 %",)),
    195: ("docs/architecture.md", ("## Technology", "Ray Serve", "TransferQueue", "Megatron-LM", "SGLang")),
    198: ("docs/claims.md", ("GPU use near 100 % by a pipeline of three stages", "not on GPUs")),
    258: ("docs/comparison.md", ("| Relax | TRL | OpenRLHF | veRL | slime |", "Which one to take")),
    259: ("docs/claims.md", ("omni-modal prompts", "down to the micro-batch", "engines join and leave")),
    261: ("docs/claims.md", ("gains 50 % or more", "colocate when resources are few")),
    273: ("docs/claims.md", ("Two to three times the throughput of TRL", "0.65 of TRL's wall time")),
    409: (
        "docs/sharded-producer.md",
        ("# TransferQueue sharded producer", "## Partitions and rows", "One local producer", "## Who renders"),
    ),
    414: ("docs/sft.md", ("`--max-tokens-per-gpu` down, first of all",)),
    415: ("docs/sft.md", ("`--global-batch-size` down", "another optimisation")),
    416: ("docs/sft.md", ("--recompute-granularity full", "--recompute-num-layers")),
    423: ("docs/sft.md", ("`--per-rank-fetch`, with enough `--num-data-storage-units`",)),
    431: (
        "docs/sft.md",
        (
            "`--eval-size` down, `--eval-interval` up",
            "`--sft-predict-interval` up or off, `--eval-max-response-len` down",
        ),
    ),
    447: ("docs/configuration.md", ("## sft", "`--sft-prefetch-buffer-size`", "`--sft-oversize-strategy`")),
}
GUIDES = ("quickstart", "running", "launching", "aliases", "models", "data", "troubleshooting")


@pytest.mark.parametrize("line", FLAGS)
def test_a_documented_flag_has_its_value(line: int) -> None:
    typed, name, value = FLAGS[line]
    minimum = [word for flag, given in MINIMUM.items() if f"{flag} " not in typed for word in (flag, given)]
    config = parse_args([*minimum, *typed.split()], machine=Machine())
    megatron = name.startswith("--")
    assert (config.external.megatron(name.removeprefix("--")) if megatron else config.value(name)) == value


@pytest.mark.parametrize("line", PAGES)
def test_a_page_says_it(line: int) -> None:
    page, texts = PAGES[line]
    words = " ".join((ROOT / page).read_text("utf-8").split())
    assert [text for text in texts if text not in words] == []


def test_every_guide_leads_to_the_installation() -> None:
    pages = {name: (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in GUIDES}
    assert [name for name, text in pages.items() if "](installation.md" not in text] == []


def test_the_chinese_readme_has_the_commands_and_links_of_the_english_one() -> None:
    names = {"README.md", "README_zh.md"}  # each leads to the other
    for pattern in (r"```bash\n.*?```", r"\]\(([^)]+)\)", r"<(https://[^>]+)>"):
        english, chinese = (set(re.findall(pattern, (ROOT / n).read_text("utf-8"), re.DOTALL)) for n in sorted(names))
        chinese = {link.replace("docs/zh/", "docs/").replace("#获取帮助", "#getting-help") for link in chinese}
        assert english - names == chinese - names != set()


def test_the_hf_command_is_in_the_environment() -> None:
    done = subprocess.run([Path(sys.executable).parent / "hf", "download", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--local-dir" in done.stdout


def test_versions_are_at_least_the_documented_ones() -> None:
    """Those that are installed, and the bounds of the two stacks that have environments of their own."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = {name: importlib.metadata.version(name) for name in ("ray", "transformers", "torch")}
    for extra in (*extras["sglang"], *extras["megatron"]):
        name, _, version = re.match(r"([a-z-]+)(>=|==)([\d.]+)$", extra).groups()  # type: ignore[union-attr]
        found[name] = version
    numbers = {name: tuple(map(int, re.findall(r"\d+", version)[:2])) for name, version in found.items()}
    least = {"ray": (2, 30), "megatron-core": (0, 8), "sglang": (0, 4), "transformers": (4, 40), "torch": (2, 3)}
    assert {name: numbers[name] >= least[name] for name in least} == dict.fromkeys(least, True)


def test_the_parser_knows_the_algorithms_of_algos() -> None:
    from relax.algorithms.spec import ALGOS
    from relax.config.aliases import parse_algorithm
    from relax.config.sections.algorithm import AlgorithmConfig

    (field,) = (field for field in dataclasses.fields(AlgorithmConfig) if field.name == "advantage_estimator")
    assert tuple(field.metadata["choices"]) == tuple(ALGOS)
    assert [parse_algorithm(name.upper()) for name in ALGOS] == list(ALGOS)


def test_the_documented_row_loads_as_it_stands(tmp_path: Path) -> None:
    from relax.data.chat import PromptBuilder
    from relax.data.datasets import open_dataset
    from relax.data.media.decode import encode_frames
    from relax.data.media.processing import MediaProcessor
    from tests.builders import tiny_omni_processor

    row = {
        "prompt": [{"content": "<image><audio><video>Which one? A or B", "role": "user"}],
        "image_key": ["a.png"],
        "audio_key": ["a.wav"],
        "video_key": ["a.mkv"],
        "label": "<answer>B</answer>",
    }
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", ""))
        sound.writeframes(bytes(3200))
    (tmp_path / "a.mkv").write_bytes(encode_frames(np.zeros((4, 32, 32, 3), np.uint8), 2.0))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    media = MediaProcessor(tiny_omni_processor())
    prepared = PromptBuilder(
        media.processor.tokenizer,
        media,
        input_key="prompt",
        label_key="label",
        apply_chat_template=True,
        multimodal_keys={"image": "image_key", "audio": "audio_key", "video": "video_key"},
    ).build(open_dataset(str(tmp_path / "rows.jsonl")).row(0))
    assert [item.kind for item in prepared.media] == ["image", "audio", "video"]
    assert prepared.label == "<answer>B</answer>"


class Shell:
    """Runs launch scripts with an interpreter that only notes its arguments, and answers where a script asks.

    Calls that are given the process of `ray start`, which runs in the background, answer when that has been noted.
    """

    def __init__(self, folder: Path) -> None:
        self.python, self.noted = folder / "python", folder / "calls.jsonl"
        self.python.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys, time\n"
            "end = time.monotonic() + 30\n"
            f"while '--pid' in sys.argv and '\"start\"' not in open({str(self.noted)!r}).read():\n"
            "    assert time.monotonic() < end, 'ray start was not called'\n"
            "    time.sleep(0.01)\n"
            f"with open({str(self.noted)!r}, 'a') as file:\n"
            "    file.write(json.dumps([sys.argv[1:], os.environ.get('MASTER_ADDR')]) + '\\n')\n"
            "answers = {'join': '10.0.0.7', 'cards': '0', 'plan': '8\\n8265\\ntoken'}\n"
            "print(next((text for word, text in answers.items() if word in sys.argv), ''))\n"
        )
        self.python.chmod(0o755)

    def run(self, *words: str, **variables: str) -> list[list[str]]:
        """Arguments of every call of the interpreter, in order of their starts."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        environment = {**kept, "PYTHON": str(self.python), "EXP_DIR": "/exp", **variables}
        done = subprocess.run(["bash", *words], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in self.noted.read_text().splitlines()]
        self.master = lines[-1][1]
        return [words for words, _ in lines]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def names(calls: list[list[str]]) -> list[str]:
    """`ready`, `nodes`, ... of relax.entrypoints.ray_cluster; `ray start`, `ray job` of Ray's own command."""
    own = {"relax.entrypoints.ray_cluster": "", "ray.scripts.scripts": "ray "}
    return [own[words[1]] + words[2] for words in calls]


def flag(words: list[str], name: str) -> str | None:
    """The value of `--name=value` or of `--name value`, the last where there are several."""
    found = [word.split("=", 1)[1] for word in words if word.startswith(f"{name}=")]
    found += [words[i + 1] for i, word in enumerate(words[:-1]) if word == name]
    return found[-1] if found else None


def test_variables_of_a_script_reach_their_flags(shell: Shell) -> None:
    given = {"PROMPT_SET": "/p.jsonl", "NUM_ROLLOUT": "7", "SYSTEM_PROMPT": "Be brief.", "PROJECT_NAME": "mine"}
    (words,) = shell.run(SCRIPT, "--dry-run", **given)
    assert flag(words, "--prompt-data") == "/p.jsonl"
    assert flag(words, "--num-rollout") == "7"
    assert flag(words, "--system-prompt") == "Be brief."
    assert flag(words, "--tb-project-name") == "/exp/tensorboard/mine"


def test_a_job_is_submitted_to_a_cluster_that_is_there(shell: Shell) -> None:
    calls = shell.run("scripts/entrypoint/ray-job.sh", SCRIPT, RAY_ADDRESS="http://127.0.0.1:8265")
    assert names(calls) == ["join", "ray job", "result"]  # no `ray start`, no `ray stop`
    job = calls[1]
    assert job[3] == "submit"
    assert flag(job, "--address") == "http://127.0.0.1:8265"
    assert job.index("--") < job.index("relax/entrypoints/train.py")
    assert shell.master == "10.0.0.7"  # what the cluster answered


HEAD = {"MASTER_ADDR": "node-0", "POD_NAME": "node-0", "HOST_IP": "127.0.0.1"}


def test_the_head_of_several_machines_starts_ray_waits_and_runs_the_script(shell: Shell) -> None:
    calls = shell.run("scripts/entrypoint/spmd-multinode.sh", SCRIPT, **HEAD)
    found = {name: words for name, words in zip(names(calls), calls, strict=True)}
    assert "--head" in found["ray start"]
    assert flag(found["ray start"], "--node-ip-address") == "127.0.0.1"
    assert flag(found["ray start"], "--resources") == '{"slot": 8}'  # NUM_GPUS
    assert flag(found["nodes"], "--count") == "2"  # WORLD_SIZE
    assert names(calls).index("nodes") < names(calls).index("ray job")


def test_a_worker_joins_and_follows_the_head(shell: Shell) -> None:
    given = HEAD | {"POD_NAME": "node-1", "HOST_IP": "127.0.0.2"}
    calls = shell.run("scripts/entrypoint/spmd-multinode.sh", SCRIPT, **given)
    found = {name: words for name, words in zip(names(calls), calls, strict=True)}
    assert set(found) == {"cards", "ready", "ray start", "follow"}  # no job
    assert "--head" not in found["ray start"]
    assert flag(found["ray start"], "--address") == "node-0:6379"
    assert flag(found["ray start"], "--node-ip-address") == "127.0.0.2"


def test_a_local_run_of_a_script_has_the_dashboard(shell: Shell) -> None:
    calls = shell.run(SCRIPT)
    found = {name: words for name, words in zip(names(calls), calls, strict=True)}
    assert flag(found["ray start"], "--include-dashboard") == "true"
    assert flag(found["ray job"], "--address") == "http://127.0.0.1:8265"
