# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Supervised fine-tuning of tiny models by the command that a user types: text, images, a resume half-way.

    python -m benchmarks.sft [--keep FOLDER]

Text: sums as prompt and label in JSONL. Images: handwritten digits (UCI, inside scikit-learn) as image structs in a
Parquet file, `<image>` at the end of the question. Both run with perplexity on held-out rows and a generative
prediction; each is stopped half-way and resumed, and the losses must be those of the run that was not. Classes:
docstrings of Python's library, function or class (as many of each, so chance is 0.5), and which of four topics they
speak of. The last line is `RESULT {json}`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sft_data import TOPICS, digit_rows, docstring_rows, sum_rows, write_parquet
from relax.utils.jsonl import read_jsonl

COMMON = {
    "loss_type": "sft",
    "use_dynamic_batch_size": True,
    "no_use_tensorboard": True,
    "inline": True,
    "bus": "local",
    "global_batch_size": 16,
    "max_tokens_per_gpu": 1024,
    "lr": 3e-3,
    "lr_decay_style": "cosine",
    "lr_warmup_iters": 5,
    "weight_decay": 0.1,
    "eval_size": 24,
    "eval_interval": 20,
    "sft_predict_interval": 40,
    "eval_temperature": 0.0,
    "eval_max_response_len": 8,
    "sft_max_in_flight_steps": 2,
}
TEXT = {"input_key": "problem", "label_key": "generated_solution", "num_epoch": 10}
IMAGE = {
    "input_key": "conversations",
    "multimodal_keys": '{"image": "images"}',
    "conversation_key_map": '{"from": "role", "value": "content", "human": "user", "gpt": "assistant"}',
    "num_epoch": 10,
}


CLASSES = {
    "input_key": "messages",
    "label_key": "label",
    "task_type": "seq_cls",
    "sft_predict_interval": None,
    "eval_size": 96,
    "eval_temperature": None,
    "eval_max_response_len": None,
    "num_epoch": 3,
    "max_tokens_per_gpu": 4096,
}
SINGLE = {**CLASSES, "num_labels": 2, "problem_type": "single_label_classification"}
SEVERAL = {**CLASSES, "num_labels": len(TOPICS), "problem_type": "multi_label_classification"}


def words(flags: Mapping[str, Any]) -> list[str]:
    """A command line; True is a switch."""
    out: list[str] = []
    for name, value in flags.items():
        option = "--" + name.replace("_", "-")
        if value is not None:
            out += [option] if value is True else [option, str(value)]
    return out


def train(flags: Mapping[str, Any]) -> None:
    """Run in this process; its own output is shown only when it fails."""
    from relax.entrypoints.train import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words(flags))
    if code != 0:
        raise SystemExit(f"exit code {code} of {' '.join(words(flags))}\n{out.getvalue()[-4000:]}")


def series(folder: Path, name: str) -> list[float]:
    return [row[name] for row in read_jsonl(folder / "metrics" / "metrics.jsonl") if name in row]


def measure(name: str, model: Path, data: Path, task: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One task: a whole run, then the same stopped half-way and resumed."""
    flags = {**COMMON, **task, "hf_checkpoint": model, "prompt_data": data}
    started = time.perf_counter()
    whole, halves = folder / f"{name}-whole", folder / f"{name}-halves"
    train({**flags, "save": whole})
    seconds = time.perf_counter() - started
    losses = series(whole, "train/loss")
    train({**flags, "save": halves, "num_rollout": len(losses) // 2, "lr_decay_iters": len(losses)})
    train({**flags, "save": halves, "load": halves, "lr_decay_iters": len(losses)})
    step = len(losses) - 1
    predictions = list(read_jsonl(whole / "predict" / f"predictions_step_{step}.jsonl"))
    right = sum(row["prediction"].replace("<|im_end|>", "").strip() == row["label"].strip() for row in predictions)
    resumed = series(halves, "train/loss")
    waits = zip(series(whole, "perf/wait_s/actor"), series(whole, "perf/wait_s/actor_data"), strict=True)
    waited = sum(sum(pair) for pair in list(waits)[1:])
    ppl = series(whole, "eval/eval/ppl")
    print(
        f"{name}: {len(losses)} steps in {seconds:.1f} s, loss {losses[0]:.3f} -> {losses[-1]:.3f}, "
        f"ppl {ppl[0]:.2f} -> {ppl[-1]:.2f}, {right}/{len(predictions)} predictions right, "
        f"resumed run equal: {resumed == losses}",
        flush=True,
    )
    return {
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "ppl_first": ppl[0],
        "ppl": ppl[-1],
        "predicted_right": right / len(predictions),
        "steps": len(losses),
        "data_wait_fraction": waited / sum(series(whole, "perf/step_s")[1:]),
        "resume_equal": resumed == losses,
    }


def classify(name: str, model: Path, rows: Sequence[Any], task: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Metrics of held-out texts before and after training, with the share that the commonest answer gets right."""
    from tests.builders import write_jsonl

    data = write_jsonl(folder / f"{name}.jsonl", list(rows))
    train({**COMMON, **task, "hf_checkpoint": model, "prompt_data": data, "save": folder / name})
    metrics = {}
    for metric in ("loss", "accuracy", "micro_f1", "subset_accuracy"):
        values = series(folder / name, f"eval/eval/{metric}")
        if values:
            metrics |= {f"{metric}_first": values[0], metric: values[-1]}
    print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in metrics.items()), flush=True)
    return metrics


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sft", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder of the runs, which stays")
    options = parser.parse_args(argv)
    from tests.builders import build_tiny_model_folder, write_jsonl

    folder = options.keep or Path(tempfile.mkdtemp(prefix="relax-sft-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        text = measure(
            "text",
            build_tiny_model_folder(folder / "qwen3", perturb=False),
            write_jsonl(folder / "sums.jsonl", sum_rows()),
            TEXT,
            folder,
        )
        image = measure(
            "image",
            build_tiny_model_folder(folder / "qwen3_vl", "qwen3_vl", perturb=False),
            write_parquet(folder / "digits.parquet", digit_rows(256)),
            IMAGE,
            folder,
        )
        text_model = folder / "qwen3"
        single = classify("classes", text_model, docstring_rows(1200, several=False), SINGLE, folder)
        several = classify("topics", text_model, docstring_rows(1200, several=True), SEVERAL, folder)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    classes = {"accuracy": single["accuracy"], "micro_f1": several["micro_f1"], "single": single, "several": several}
    result = {
        "text": text,
        "image": image,
        "seq_cls": classes,
        "resume_equal": text["resume_equal"] and image["resume_equal"],
    }
    print("RESULT " + json.dumps(result), flush=True)
    return 0 if result["resume_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
