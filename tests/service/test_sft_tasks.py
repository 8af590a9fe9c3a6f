# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Images, classes, preferences, documents and rows that are left out: each through the whole run, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.sft_data import digit_rows, write_parquet
from relax.components.trained import read_trained
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.test_sft_inline import MATH, flags, weights
from tests.service.training_run import Finished, inline

SHAREGPT = '{"from": "role", "value": "content", "human": "user", "gpt": "assistant"}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"))


def predictions(run: Finished, step: int) -> list[dict[str, Any]]:
    path = run.folder / "predict" / f"predictions_step_{step}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_images_of_a_parquet_file_are_trained_and_predicted(tmp_path: Path) -> None:
    model = build_tiny_model_folder(tmp_path / "vl", "qwen3_vl")
    data = write_parquet(tmp_path / "digits.parquet", digit_rows(20))
    changed = {
        "input_key": "conversations",
        "label_key": None,
        "multimodal_keys": '{"image": "images"}',
        "conversation_key_map": SHAREGPT,
        "max_tokens_per_gpu": 256,
        "eval_size": 4,
        "eval_interval": 2,
        "sft_predict_interval": 4,
        "eval_temperature": 0.0,
        "eval_max_response_len": 4,
        "sft_max_in_flight_steps": 2,
    }
    whole = inline(flags(model, data, tmp_path / "whole", **changed)).ok()
    losses = whole.metrics("train/loss")
    assert len(losses) == 4 and whole.metrics("eval/eval/loss")[-1] < whole.metrics("eval/eval/loss")[0]
    rows = predictions(whole, 3)
    assert len(rows) == 4 and {row["weight_version"] for row in rows} == {4}
    assert all(row["label"].strip() in "0123456789" for row in rows)
    assert all(row["prompt"].count("<|image_pad|>") == 1 for row in rows)  # as the engine is sent it
    half = inline(flags(model, data, tmp_path / "halves", **changed, num_rollout=2)).ok()
    again = inline(flags(model, data, half.folder, **changed, load=half.folder)).ok()
    assert again.metrics("train/loss") == losses
    assert predictions(again, 3) == rows


def test_classes_of_texts(model: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"What is {a} plus {b}?"}], "label": int(a > b)}
        for a in range(6)
        for b in range(4)
    ]
    changed = {"input_key": "messages", "label_key": "label", "task_type": "seq_cls", "num_labels": 2}
    changed |= {"problem_type": "single_label_classification", "eval_size": 6, "eval_interval": 100, "num_epoch": 4}
    run = inline(flags(model, write_jsonl(tmp_path / "c.jsonl", rows), tmp_path / "run", **changed)).ok()
    assert len(run.metrics("train/loss")) == 18  # 4 x 18 rows in steps of 4
    for name in ("accuracy", "loss"):
        assert len(run.metrics(f"eval/eval/{name}")) == 2
    assert run.metrics("eval/eval/loss")[1] < run.metrics("eval/eval/loss")[0]
    assert 0.0 <= run.metrics("eval/eval/accuracy")[-1] <= 1.0


@pytest.mark.parametrize("loss_type", ["dpo", "reward_model"])
def test_preference_pairs(model: Path, tmp_path: Path, loss_type: str) -> None:
    rows = [
        {"prompt": f"What is {a} plus {b}?", "chosen": f"The answer is {a + b}.", "rejected": f"The answer is {a}."}
        for a in range(4)
        for b in range(1, 4)
    ]
    changed = {"loss_type": loss_type, "input_key": "prompt", "label_key": None, "num_epoch": 2, "lr": 1e-3}
    changed |= {"eval_size": 4, "eval_interval": 2}
    data = write_jsonl(tmp_path / "pairs.jsonl", rows)
    whole = inline(flags(model, data, tmp_path / "whole", **changed)).ok()
    margins = whole.metrics(f"train/{loss_type}/reward_margin" if loss_type == "dpo" else "train/reward_model/loss")
    assert len(margins) == 4
    if loss_type == "dpo":
        assert margins[0] == 0.0  # the policy is its reference before the first step
        assert whole.metrics("train/loss")[0] == pytest.approx(np.log(2.0), abs=1e-6)
        assert whole.metrics("eval/eval/dpo_loss")[0] == pytest.approx(np.log(2.0), abs=1e-6)
    half = inline(flags(model, data, tmp_path / "halves", **changed, num_rollout=2)).ok()
    again = inline(flags(model, data, half.folder, **changed, load=half.folder)).ok()
    assert again.metrics("train/loss") == whole.metrics("train/loss")


def test_documents_are_trained_whole(model: Path, tmp_path: Path) -> None:
    rows = [{"text": f"{row['problem']} {row['generated_solution']}"} for row in MATH]
    changed = {"input_key": "text", "label_key": None, "sft_training_mode": "cpt"}
    run = inline(flags(model, write_jsonl(tmp_path / "d.jsonl", rows), tmp_path / "run", **changed)).ok()
    tokens, trained = run.metrics("sft/tokens"), run.metrics("train/trained_tokens")
    assert trained == [total - 4 for total in tokens]  # all but the first token of each of the four documents


def test_rows_above_the_limit_are_left_out_and_the_next_ones_taken(model: Path, tmp_path: Path) -> None:
    long = {"problem": "What is the answer? " * 20, "generated_solution": "The answer is long."}
    rows = [long if place % 4 == 0 else row for place, row in enumerate(MATH)]
    data = write_jsonl(tmp_path / "some.jsonl", rows)
    changed = {"sft_oversize_strategy": "skip", "max_tokens_per_gpu": 64}
    run = inline(flags(model, data, tmp_path / "run", **changed)).ok()
    # 24 rows of which 6 are too long leave 18: four steps of 4, not six
    assert run.metrics("sft/rows") == [4.0] * 4
    assert sum(run.metrics("sft/skipped_rows/oversize")) <= 6.0
    assert len(set(read_trained(run.folder / "iter_0000003" / "model")["prompt"].tolist())) == 16
    half = inline(flags(model, data, tmp_path / "halves", **changed, num_rollout=2)).ok()
    again = inline(flags(model, data, half.folder, **changed, load=half.folder)).ok()
    assert again.metrics("train/loss") == run.metrics("train/loss")


def test_processes_that_render_change_nothing(model: Path, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "math.jsonl", MATH)
    runs = [
        inline(flags(model, data, tmp_path / f"run-{size}", num_rollout=2, mm_processor_pool_size=size)).ok()
        for size in (0, 2)
    ]
    old, new = (weights(run.folder, 1) for run in runs)
    assert all(np.array_equal(old[name], new[name]) for name in old)
