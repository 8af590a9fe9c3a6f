# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""On-policy distillation on a laptop: a small student moves to a larger teacher on its own samples, without a reward.

data -> teacher by supervised training -> student by a short one -> distillation by `relax.entrypoints.train`

python -m examples.on_policy_distillation.demo [--form ids|sampled] [--teacher engine|local] [--steps 60]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.quickstart import report
from examples.quickstart.sft import ColdStart, cold_start
from relax.utils.jsonl import read_jsonl

ROOT = Path(__file__).parents[2]
WINDOW = 3  # steps of which the first and the last divergence are a mean
TEACHER, STUDENT = ColdStart(240, 1e-3), ColdStart(120, 1e-3)
LAYERS = {"teacher": 4, "student": 2}
STEPS = 60  # rollouts of 128 different prompts, four optimizer steps each


@dataclass(frozen=True)
class Form:
    """How the student is drawn to its teacher."""

    says: str
    flags: Mapping[str, object]
    lr: float


FORMS = {
    "ids": Form(
        "jsd over the teacher's 8 likeliest ids, a loss",
        {
            "--opd-loss-coef": 1.0,
            "--opd-token-selection": "teacher_topk",
            "--opd-log-prob-top-k": 8,
            "--opd-kl-type": "jsd",
        },
        lr=1e-3,
    ),
    # an estimate from one token has much variance, which a larger step does not bear
    "sampled": Form("reverse_kl of the sampled token, in the advantages", {"--opd-kl-coef": 1.0}, lr=3e-4),
}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--form", choices=tuple(FORMS), default="ids", help="8 ids a token, or the sampled one")
    parser.add_argument("--steps", type=int, default=STEPS, help="rollouts of the distillation")
    parser.add_argument("--teacher", choices=("engine", "local"), default="engine", help="where the teacher computes")
    parser.add_argument("--teacher-steps", type=int, default=TEACHER.steps)
    parser.add_argument("--student-steps", type=int, default=STUDENT.steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/distillation-...)")
    return parser.parse_args(argv)


def train_flags(options: argparse.Namespace, folder: Path) -> list[str]:
    """The command line of the distillation. The reward is 0 for every sample: only the teacher speaks."""
    teacher = "--teacher-hf-checkpoint" if options.teacher == "engine" else "--opd-teacher-load"
    flags: dict[str, object] = {
        "--hf-checkpoint": folder / "student",
        teacher: folder / "teacher",
        "--save": folder / "run",
        "--save-hf": folder / "distilled",
        "--prompt-data": folder / "data" / "text-train.jsonl",
        "--input-key": "prompt",
        "--label-key": "label",
        "--rm-type": "dummy",
        "--num-rollout": options.steps,
        "--rollout-batch-size": 128,
        "--n-samples-per-prompt": 1,
        "--global-batch-size": 32,
        "--rollout-max-response-len": 4,
        "--rollout-seed": options.seed,
        "--max-tokens-per-gpu": 8192,
        "--lr": FORMS[options.form].lr,
        "--min-lr": 1e-4,
        "--lr-decay-style": "linear",
        "--lr-warmup-iters": 5,
        "--adam-beta2": 0.99,
        **FORMS[options.form].flags,
    }
    switches = ["--inline", "--colocate", "--use-opd", "--opd-only-reward", "--apply-chat-template"]
    switches += [
        "--disable-rewards-normalization",
        "--use-rollout-logprobs",
        "--rollout-shuffle",
        "--use-dynamic-batch-size",
        "--calculate-per-token-loss",
        "--no-use-tensorboard",
    ]
    return [*switches, *(text for name, value in flags.items() for text in (name, str(value)))]


def supervise(folder: Path, data: Path, name: str, plan: ColdStart, seed: int) -> None:
    """A model of its own size, trained on right answers, exported to `folder/name`."""
    from examples.quickstart.model import build_model

    size = build_model(folder / f"{name}-random", seed=seed, layers=LAYERS[name])
    print(f"{name}: {size:,} parameters, {plan.steps} supervised steps", flush=True)
    cold_start(
        folder / f"{name}-random", data, folder / name, "text", plan, wrong_share=0.0, seed=seed,
        say=lambda text: None,
    )  # fmt: skip


def divergence(folder: Path) -> list[float]:
    """What the curve `train/opd_kl` shows, nats a token."""
    rows = read_jsonl(folder / "run" / "metrics" / "metrics.jsonl")
    return [row["train/opd_kl"] for row in rows if "train/opd_kl" in row]


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from transformers.utils import logging

    from examples.quickstart.data import write_data
    from examples.quickstart.heldout import accuracy, answers, rows_of

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    started = time.monotonic()
    train, heldout = write_data("text", folder / "data")
    supervise(folder, train, "teacher", ColdStart(options.teacher_steps, TEACHER.lr), options.seed)
    supervise(folder, train, "student", ColdStart(options.student_steps, STUDENT.lr), options.seed + 1)
    command = [sys.executable, "-m", "relax.entrypoints.train", *train_flags(options, folder)]
    if (code := subprocess.run(command, cwd=ROOT, check=False).returncode) != 0:
        raise SystemExit(code)
    scores = {
        name: accuracy(rows_of(heldout), answers(folder / name, heldout))
        for name in ("teacher", "student", "distilled")
    }
    curve = divergence(folder)
    return {
        "teacher": options.teacher,
        "form": FORMS[options.form].says,
        "kl_first": report.mean(curve[:WINDOW]),
        "kl_last": report.mean(curve[-WINDOW:]),
        "heldout_teacher": scores["teacher"],
        "heldout_student_before": scores["student"],
        "heldout_student_after": scores["distilled"],
        "steps": len(curve),
        "seconds": time.monotonic() - started,
        "run_dir": str(folder),
    }


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = (options.run_dir or ROOT / "runs" / f"distillation-s{options.seed}-{stamp}").resolve()
    result = run(options, folder)
    print(
        f"divergence {result['kl_first']:.3f} -> {result['kl_last']:.3f} nats a token; held-out accuracy "
        f"{result['heldout_student_before']:.3f} -> {result['heldout_student_after']:.3f}, teacher "
        f"{result['heldout_teacher']:.3f}"
    )
    print(report.result_line(result), flush=True)


if __name__ == "__main__":
    main()
