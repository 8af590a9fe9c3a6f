# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Supervised fine-tuning in one process: it learns, resumes exactly, and does not depend on how rows flow."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from relax.components.trained import read_trained
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.training_run import Finished, checkpoint_weights, inline

ROWS = 24
SAFE = "model.safetensors"
MATH = [
    {"problem": f"What is {a} plus {b}?", "generated_solution": f"The answer is {a + b}."}
    for a in range(6)
    for b in range(4)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("data") / "math.jsonl", MATH)


def flags(model: Path, data: Path, save: Path, **changed: object) -> list[str]:
    values: dict[str, object] = {
        "loss_type": "sft",
        "hf_checkpoint": model,
        "prompt_data": data,
        "input_key": "problem",
        "label_key": "generated_solution",
        "global_batch_size": 4,
        "num_epoch": 1,
        "max_tokens_per_gpu": 96,
        "lr": 1e-2,
        "save": save,
        **changed,
    }
    words = ["--no-use-tensorboard", "--use-dynamic-batch-size"]
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        words += [] if value is None else [option] if value is True else [option, str(value)]
    return words


def weights(folder: Path, step: int) -> dict[str, np.ndarray]:
    """The weights of a checkpoint."""
    found = checkpoint_weights(folder / f"iter_{step:07d}" / "model")
    return {name: tensor.numpy() for name, tensor in found.items()}


def trained_groups(folder: Path, step: int) -> list[tuple[int, int]]:
    records = read_trained(folder / f"iter_{step:07d}" / "model")
    return [(int(record["rollout"]), int(record["group"])) for record in records]


@pytest.fixture(scope="module")
def whole(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    save = tmp_path_factory.mktemp("runs") / "whole"
    return inline(flags(model, data, save, num_epoch=2, save_interval=3, eval_size=4, eval_interval=5)).ok()


def test_a_run_learns_its_rows_and_says_what_it_did(whole: Finished) -> None:
    # 24 rows less 4 held out, twice, in steps of 4: 10 steps
    losses = whole.metrics("train/loss")
    assert len(losses) == 10 and losses[-1] < losses[0]
    assert whole.metrics("train/sft_loss") == losses
    assert whole.metrics("sft/rows") == [4.0] * 10
    assert whole.metrics("sft/epoch")[4] == 1.0 and whole.metrics("sft/epoch")[-1] == 2.0
    assert whole.metrics("perf/wait_s/actor_data") and whole.metrics("perf/wait_s/sft")
    assert whole.reason == "finished"
    kinds = [event["kind"] for event in whole.events() if event["kind"] in ("taken", "stepped", "checkpoint")]
    assert kinds.count("taken") == kinds.count("stepped") == 10 and kinds.count("checkpoint") == 4
    assert (whole.folder / "latest_checkpointed_iteration.txt").read_text() == "9"


def test_the_perplexity_of_held_out_rows_falls(whole: Finished) -> None:
    ppl, loss = whole.metrics("eval/eval/ppl"), whole.metrics("eval/eval/loss")
    assert len(ppl) == 3 and ppl[-1] < ppl[0]  # before the first step, after 5, after 10
    assert ppl == [pytest.approx(math.exp(value)) for value in loss]
    assert whole.metrics("eval/eval/rows") == [4.0] * 3
    assert whole.metrics("eval/weight_version") == [0.0, 5.0, 10.0]


def test_each_row_is_trained_once_an_epoch_and_no_held_out_one(whole: Finished, model: Path) -> None:
    from relax.components.trained import prompt_hash
    from relax.data.model_files import load_tokenizer
    from relax.engine.sft.dataset.split import split_rows

    records = read_trained(whole.folder / "iter_0000009" / "model")
    assert [int(record["group"]) for record in records] != [] and sorted(records["group"].tolist()) == list(range(40))
    tokenizer = load_tokenizer(str(model))
    train, held_out = split_rows(ROWS, 4, 1234)

    def prompt(row: int) -> int:
        text = f"<|im_start|>user\n{MATH[row]['problem']}<|im_end|>\n<|im_start|>assistant\n"
        return prompt_hash(np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32))

    for epoch in range(2):
        inside = records[(records["group"] >= epoch * 20) & (records["group"] < epoch * 20 + 20)]
        assert sorted(inside["prompt"].tolist()) == sorted(prompt(row) for row in train)
    assert not {prompt(row) for row in held_out} & set(records["prompt"].tolist())


def test_a_run_that_goes_on_ends_with_the_very_weights(
    whole: Finished, model: Path, data: Path, tmp_path: Path
) -> None:
    common = {"num_epoch": 2, "eval_size": 4, "eval_interval": 5, "save_interval": 3}
    first = inline(flags(model, data, tmp_path / "run", **common, num_rollout=6)).ok()
    assert "iter_0000005" in {path.name for path in first.folder.glob("iter_*")}
    second = inline(flags(model, data, tmp_path / "run", **common, load=tmp_path / "run")).ok()
    assert "resumed from" in second.out and "6 steps are contained" in second.out
    old, new = weights(whole.folder, 9), weights(second.folder, 9)
    assert old.keys() == new.keys() and all(np.array_equal(old[name], new[name]) for name in old)
    assert trained_groups(second.folder, 9) == trained_groups(whole.folder, 9)
    assert second.metrics("train/loss") == whole.metrics("train/loss")  # the run's own file, before and after
    assert second.events("stepped")[-1]["digest"] == whole.events("stepped")[-1]["digest"]


@pytest.mark.parametrize(
    "changed",
    [
        {"sft_prefetch_num_workers": 1, "sft_prefetch_chunk_size": 3, "sft_prefetch_buffer_size": 0},
        {"sft_max_in_flight_steps": 3},
        {"sft_max_in_flight_steps": 3, "per_rank_fetch": True, "sft_async_prepack": True, "sft_tq_shards": 2},
    ],
)
def test_weights_do_not_depend_on_how_rows_flow(
    whole: Finished, model: Path, data: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    common = {"num_epoch": 2, "eval_size": 4, "eval_interval": 5}
    other = inline(flags(model, data, tmp_path / "run", **common, **changed)).ok()
    old, new = weights(whole.folder, 9), weights(other.folder, 9)
    assert all(np.array_equal(old[name], new[name]) for name in old)


def test_training_starts_at_the_reference_where_load_holds_no_checkpoint(
    model: Path, data: Path, tmp_path: Path
) -> None:
    other = build_tiny_model_folder(tmp_path / "other", seed=5)
    start = {"ref_load": other, "load": tmp_path / "run", "lr": 0, "num_rollout": 1}  # a step that changes nothing
    done = inline(flags(model, data, tmp_path / "run", **start)).ok()
    assert f"--load {tmp_path / 'run'} holds no checkpoint: training starts at {other}" in done.out + done.err
    trained, told, tokenizer_only = weights(done.folder, 0), load_file(other / SAFE), load_file(model / SAFE)
    assert told and all(np.array_equal(trained[f"model.{name}"], told[name]) for name in told)
    assert any(not np.array_equal(trained[f"model.{name}"], tokenizer_only[name]) for name in tokenizer_only)


def test_other_rows_are_refused_at_a_resume(whole: Finished, model: Path, data: Path) -> None:
    changed = inline(
        flags(model, data, whole.folder, num_epoch=3, load=whole.folder, seed=7, eval_size=4, eval_interval=5)
    )
    assert changed.code == 2 and "--seed or --eval-size has changed" in changed.err


def test_a_dry_run_counts_steps_and_starts_nothing(model: Path, data: Path, tmp_path: Path) -> None:
    done = inline([*flags(model, data, tmp_path / "run", eval_size=4, eval_interval=2), "--dry-run"]).ok()
    report = json.loads(done.out)
    assert (report["batches"]["rollouts"], report["sft"]["train_rows"]) == (5, 20)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("row", "changed", "part"),
    [
        ({"question": "x", "generated_solution": "y"}, {}, "SFT row missing prompt key"),
        ({"problem": "x"}, {"label_key": None}, "--label-key is not set"),
    ],
)
def test_a_wrong_row_is_told_with_its_place_before_anything_starts(
    model: Path, tmp_path: Path, row: dict[str, str], changed: dict[str, Any], part: str
) -> None:
    rows = write_jsonl(tmp_path / "bad.jsonl", [row] * 8)
    failed = inline(flags(model, rows, tmp_path / "run", **changed))
    assert failed.code == 2 and part in failed.err and "bad.jsonl:1" in failed.err
