# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The documented command of one node trains as it is typed: exactly its ten flags, eight engines, all modalities.

Around it stand a tiny omni model under the model's name, short films, sounds and pictures, and a context that ends a
random model's responses, which never end by themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.test_training_scripts import write_media
from tests.service.training_run import ROOT, Finished
from tests.unit.config.test_aliases import SINGLE_NODE

pytestmark = [pytest.mark.slow, pytest.mark.service]

ROWS, EPOCHS, SAMPLES = 32, 10, 256  # one rollout an epoch; 32 prompts x 8 samples
CONTEXT = 192  # tokens


def prepare(folder: Path) -> None:
    model = build_tiny_model_folder(folder / "Qwen/Qwen3-Omni-30B", "qwen3_omni_moe")
    config = json.loads((model / "config.json").read_text())
    texts = [part for part in walk(config) if "max_position_embeddings" in part and "vocab_size" in part]
    for text in texts:
        text["max_position_embeddings"] = CONTEXT
    assert texts, "no part of config.json tells the context"
    (model / "config.json").write_text(json.dumps(config))
    write_media(folder / "media")
    told = {"image": "a.png", "audio": "a.wav", "video": "a.mkv"}
    (folder / "data/multimodal_dataset").mkdir(parents=True)
    rows = []
    for number in range(ROWS):
        kind = tuple(told)[number % 3]
        media = {name: [str(folder / "media" / file)] if name == kind else [] for name, file in told.items()}
        content = f"<{kind}>Which one is it, number {number}?"
        rows.append({"messages": [{"role": "user", "content": content}], "label": "<answer>B</answer>", **media})
    write_jsonl(folder / "data/multimodal_dataset/train.jsonl", rows)


def walk(value: object) -> list[dict]:
    """Every mapping inside a JSON value."""
    if not isinstance(value, dict):
        return []
    return [value, *(found for inner in value.values() for found in walk(inner))]


def test_the_documented_command_trains_with_exactly_its_ten_flags(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="--report_to wandb needs the extra [wandb]")
    prepare(tmp_path)
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "WANDB_API_KEY")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *SINGLE_NODE.split()],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    run = Finished(tmp_path / "checkpoints/relax_qwen3_omni", done.returncode, done.stdout, done.stderr).ok()
    assert run.reason == "finished"
    assert len(run.events("stepped")) == EPOCHS
    assert len(run.samples(0)) == SAMPLES
    assert len({event["engine"] for event in run.events("engine_joined")}) == 8
    assert (run.folder / "latest_checkpointed_iteration.txt").read_text().strip() == str(EPOCHS - 1)
