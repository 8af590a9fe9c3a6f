# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Does the real SGLang, on this CPU, do what the native engine does? `make test-sglang`.

    python -m benchmarks.sglang_cpu [--python .venv-sglang/bin/python] [--skip-tests] [--steps 5]

First the tests of tests/conformance run against SGLang 0.5.23, as it is published, behind our CPU platform. Then the
quick start's omni model (with experts, in the form that SGLang serves) trains for some steps, fully async, by the
ordinary training command: on images with weights by shared memory, on text with weights by gloo broadcast. A plain
Qwen3 trains adapters on text, which SGLang gets by themselves. Every
answer of the engine is compared with the trainer's log-probs under the version that made it. The last line is
`RESULT {json}`; the exit code is 1 when a test or a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path
from typing import Any

from relax.utils.jsonl import read_jsonl
from relax.utils.types import Sample

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
LIMIT = 1e-4  # nats, between engine and trainer in float32
TEST_TIMEOUT_S, RUN_TIMEOUT_S = 1500, 1200
STOP_TIMEOUT_S = 60  # for a command that is asked to end
TRANSPORT = {"image": "shm", "audio": "shm", "text": "gloo", "adapter": "shm"}  # of weights
EXPERTS, LAYERS = 4, 2
LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
PROMPTS, SAMPLES = 8, 4  # of one step
MAX_STALENESS = 1


def varied_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """In [0, 1], different for different answers: every step has a gradient, whatever a random model answers."""
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    return sum(token * (place + 1) for place, token in enumerate(response)) % 97 / 96


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter of SGLang's environment")
    parser.add_argument("--skip-tests", action="store_true", help="only train")
    parser.add_argument("--modalities", nargs="*", choices=tuple(TRANSPORT), default=["image", "text", "adapter"])
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def ended(command: list[str], timeout_s: float, environment: dict[str, str] | None = None) -> int | None:
    """Exit code of a command; None when it did not end in time and was ended."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command[:4])} ... did not end within {timeout_s:g} s", file=sys.stderr)
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def test(python: Path, folder: Path) -> dict[str, Any]:
    """Counts of the conformance tests against SGLang."""
    report = folder / "report.xml"
    environment = {**os.environ, "RELAX_CONFORMANCE_ENGINE": "sglang", "RELAX_SGLANG_PYTHON": str(python)}
    command = [sys.executable, "-m", "pytest", "tests/conformance", "-v", "-rs", f"--junitxml={report}"]
    if ended(command, TEST_TIMEOUT_S, environment) is None or not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}
    suite = next(ElementTree.parse(report).iter("testsuite")).attrib
    failed, skipped = int(suite["failures"]) + int(suite["errors"]), int(suite["skipped"])
    return {"passed": int(suite["tests"]) - failed - skipped, "failed": failed, "skipped": skipped}


def prepare(modality: str, folder: Path) -> tuple[Path, Path]:
    """(model folder as SGLang serves it, training rows)."""
    from examples.quickstart.data import write_data
    from examples.quickstart.model import build_model, write_sglang_form

    if modality == "adapter":
        return write_text_model(folder / "model"), write_data("text", folder / "data")[0]
    build_model(folder / "thinker", layers=LAYERS, experts=EXPERTS)
    write_sglang_form(folder / "thinker", folder / "model")
    return folder / "model", write_data(modality, folder / "data")[0]


def write_text_model(folder: Path) -> Path:
    """A plain Qwen3 with random weights, wide enough that adapters change what it says."""
    import torch
    import transformers

    from examples.quickstart.tokenizer import make_tokenizer

    tokenizer = make_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def flags(modality: str, model: Path, rows: Path, save: Path, python: Path, steps: int) -> list[str]:
    """The command line of an ordinary fully async run; two of them choose the engine."""
    media = ["--multimodal-keys", json.dumps({modality: modality})] if modality in ("image", "audio") else []
    if modality == "adapter":
        media = ["--lora-adapter-mode", "--lora-rank", "8", "--lora-target-modules", *LORA_TARGETS]
    values = {
        "--rollout-backend": "sglang",
        "--sglang-python": python,
        "--hf-checkpoint": model,
        "--prompt-data": rows,
        "--input-key": "prompt",
        "--label-key": "label",
        "--custom-rm-path": "benchmarks.sglang_cpu.varied_reward",
        "--num-rollout": steps,
        "--rollout-batch-size": PROMPTS,
        "--n-samples-per-prompt": SAMPLES,
        "--global-batch-size": PROMPTS * SAMPLES,
        "--rollout-max-response-len": 12,
        "--max-staleness": MAX_STALENESS,
        "--checkpoint-engine-backend": TRANSPORT[modality],
        "--engine-max-running-requests": 64,
        "--engine-max-total-tokens": 16384,
        "--parity-interval": 1,  # every step, not only the first
        "--lr": 1e-2 if modality == "adapter" else 1e-3,
        "--save": save,
        "--save-hf": save / "hf",
        "--save-interval": steps,
        "--serve-port": 0,
    }
    pairs = [text for name, value in values.items() for text in (name, str(value))]
    return ["--fully-async", "--use-rollout-logprobs", "--apply-chat-template", *media, *pairs]


def train(modality: str, folder: Path, python: Path, steps: int) -> dict[str, Any]:
    """What one run measured; `ok` says whether it did all that it should."""
    model, rows = prepare(modality, folder)
    save = folder / "run"
    command = [sys.executable, "-m", "relax.entrypoints.train", *flags(modality, model, rows, save, python, steps)]
    return {**summary(save, ended(command, RUN_TIMEOUT_S), steps), "weights_by": TRANSPORT[modality]}


def summary(save: Path, code: int | None, steps: int) -> dict[str, Any]:
    """From the run folder: largest difference, versions sampled under, groups whose answers are all equal."""
    metrics = save / "metrics" / "metrics.jsonl"
    lines = list(read_jsonl(metrics)) if metrics.exists() else []
    differences = [
        line["train/engine_log_prob_diff/max"] for line in lines if "train/engine_log_prob_diff/max" in line
    ]
    versions, tokens, answers = set(), 0, defaultdict(list)
    for file in sorted((save / "rollout_result" / "train").glob("*.jsonl")):
        for row in read_jsonl(file):
            versions |= {row["first_version"], row["last_version"]} - {None}
            tokens += row["response_tokens"]
            answers[row["group"]].append(row["response"])
    copies = sum(len(set(texts)) == 1 for texts in answers.values())  # a seed of its own for each sample leaves none
    worst = max(differences, default=None)
    whole = len(differences) == steps and len(versions) > 1 and len(answers) == steps * PROMPTS
    return {
        "ok": code == 0 and whole and not copies and worst is not None and worst < LIMIT,
        "exit_code": code,
        "steps": len(differences),
        "max_engine_trainer_diff": worst,
        "versions_sampled_under": sorted(versions),
        "groups": len(answers),
        "groups_of_copies": copies,
        "response_tokens": tokens,
    }


def main() -> int:
    arguments = parse()
    python = arguments.python.absolute()  # not resolved: the link's folder is the environment
    if not python.exists():
        print(f"{python} does not exist: `make test-sglang` builds it, or name another by --python", file=sys.stderr)
        return 2
    result: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0}
    with tempfile.TemporaryDirectory(prefix="relax-sglang-") as folder:
        if not arguments.skip_tests:
            result |= test(python, Path(folder))
        runs = {m: train(m, Path(folder) / m, python, arguments.steps) for m in arguments.modalities}
    for run in runs.values():
        result["passed" if run.pop("ok") else "failed"] += 1
    differences = [run["max_engine_trainer_diff"] for run in runs.values()]
    result["max_engine_trainer_diff"] = max((d for d in differences if d is not None), default=None)
    print(f"RESULT {json.dumps({**result, 'runs': runs})}", flush=True)
    return int(result["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
