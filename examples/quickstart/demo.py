# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The main job: a tiny omni model learns to read real digits by reinforcement learning.

prepare -> supervised cold start -> held-out answers -> GRPO by `relax.entrypoints.train` -> held-out answers

python -m examples.quickstart.demo [--modality image|audio|text] [--colocate] [--seed 0] [--steps 40]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.quickstart import report
from examples.quickstart.sft import ColdStart
from relax.utils.cpu_meter import CpuMeter

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Job:
    """Hyper-parameters of one modality. All were found with a plain loop before there was a framework."""

    task: str
    cold_start: ColdStart
    wrong_share: float  # of the demonstrations
    steps: int
    prompts: int  # of one rollout
    lr: float
    layers: int = 3


JOBS = {
    "image": Job("read a handwritten digit", ColdStart(120, 1.5e-3), 0.5, steps=40, prompts=32, lr=3e-4),
    "audio": Job("recognise a spoken digit", ColdStart(200, 1.5e-3), 0.5, steps=40, prompts=32, lr=3e-4),
    "text": Job("add two numbers", ColdStart(160, 1e-3), 0.0, steps=60, prompts=64, lr=2e-4, layers=4),
}
SAMPLES_PER_PROMPT = 8


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modality", choices=tuple(JOBS), default="image")
    parser.add_argument("--colocate", action="store_true", help="take turns instead of fully async with staleness 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="optimizer steps of the reinforcement learning")
    parser.add_argument("--sft-steps", type=int, help="optimizer steps of the supervised cold start")
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/quickstart-...)")
    parser.add_argument("--prepare-only", action="store_true", help="stop after the supervised cold start")
    parser.add_argument("train_args", nargs="*", help="after --: more flags for relax.entrypoints.train")
    return parser.parse_args(argv)


def train_flags(options: argparse.Namespace, job: Job, run_dir: Path) -> list[str]:
    """The command line of the reinforcement learning; `run-digits-omni-cpu.sh` is the same as a script."""
    steps = options.steps or job.steps
    mode = ["--colocate"] if options.colocate else ["--fully-async", "--max-staleness", "1", "--use-rollout-logprobs"]
    media = (
        [] if options.modality == "text" else ["--multimodal-keys", f'{{"{options.modality}": "{options.modality}"}}']
    )
    flags = {
        "--hf-checkpoint": run_dir / "hf_before",
        "--save": run_dir,
        "--save-hf": run_dir / "hf_after",
        "--save-interval": steps,
        "--prompt-data": run_dir / "data" / f"{options.modality}-train.jsonl",
        "--input-key": "prompt",
        "--label-key": "label",
        "--custom-rm-path": "examples.quickstart.reward.digit_reward",
        "--advantage-estimator": "grpo",
        "--eps-clip": 0.2,
        "--num-rollout": steps,
        "--rollout-batch-size": job.prompts,
        "--n-samples-per-prompt": SAMPLES_PER_PROMPT,
        "--global-batch-size": job.prompts * SAMPLES_PER_PROMPT,
        "--rollout-max-response-len": 4,
        "--rollout-temperature": 1.0,
        "--rollout-seed": options.seed,
        "--seed": options.seed,
        "--max-tokens-per-gpu": 8192,
        "--lr": job.lr,
        "--lr-warmup-iters": 5,
        "--adam-beta2": 0.99,
        "--clip-grad": 0.2,
        "--serve-port": 0,
    }
    switches = [
        *mode,
        "--apply-chat-template",
        "--rollout-shuffle",
        "--disable-grpo-std-normalization",
        "--use-dynamic-batch-size",
    ]
    pairs = [text for name, value in flags.items() for text in (name, str(value))]
    return [*switches, *media, *pairs, *options.train_args]


class Demo:
    """One run of the quick start; the stages run in the order of `run`."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.options, self.job, self.say = options, JOBS[options.modality], say
        self.plan = replace(self.job.cold_start, steps=options.sft_steps or self.job.cold_start.steps)
        mode = "colocate" if options.colocate else "async"
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        name = f"quickstart-{options.modality}-{mode}-s{options.seed}-{stamp}-{os.getpid()}"
        self.run_dir = (options.run_dir or ROOT / "runs" / name).resolve()
        self.meter = CpuMeter()
        self.started_at = time.monotonic()
        self.cpu_s_to_first_step: float | None = None

    def run(self) -> dict[str, Any]:
        data = self.prepare()
        self.supervise(data[0])
        before = self.answer("hf_before", data[1])
        self.reinforce()
        after = self.answer("hf_after", data[1])
        return self.report(data[1], before, after)

    def prepare(self) -> tuple[Path, Path]:
        """Model folder and data files."""
        from transformers.utils import logging

        from examples.quickstart.data import write_data
        from examples.quickstart.model import build_model

        logging.disable_progress_bar()
        logging.set_verbosity_error()

        self.say(f"[1/5] a tiny Qwen3-Omni and the task: {self.job.task}")
        size = build_model(self.run_dir / "model", seed=self.options.seed, layers=self.job.layers)
        train, heldout = write_data(self.options.modality, self.run_dir / "data")
        self.say(f"      {size:,} parameters, random; data in {self.run_dir / 'data'}")
        return train, heldout

    def supervise(self, train: Path) -> None:
        """The cold start."""
        from examples.quickstart.sft import cold_start

        plan, share = self.plan, self.job.wrong_share
        note = (
            f"; {share:.0%} of the demonstrations are wrong by design, so that the reward has to decide"
            if share
            else ""
        )
        self.say(f"[2/5] supervised cold start, {plan.steps} steps of {plan.batch_size}{note}")
        cold_start(
            self.run_dir / "model",
            train,
            self.run_dir / "hf_before",
            self.options.modality,
            plan,
            wrong_share=share,
            seed=self.options.seed,
            say=self.say,
        )

    def answer(self, model: str, data: Path) -> list[str]:
        """Greedy held-out answers of an exported model."""
        from examples.quickstart.heldout import accuracy, answers, rows_of

        number = 3 if model == "hf_before" else 5
        given = answers(self.run_dir / model, data)
        score = accuracy(rows_of(data), given)
        self.say(f"[{number}/5] held-out accuracy of {model}, greedy, plain transformers: {score:.3f} of {len(given)}")
        return given

    def reinforce(self) -> None:
        """GRPO in processes of its own."""
        command = [sys.executable, "-m", "relax.entrypoints.train"]
        command += train_flags(self.options, self.job, self.run_dir)
        mode = "colocated, on-policy" if self.options.colocate else "fully async, staleness at most 1"
        self.say(f"[4/5] reinforcement learning by GRPO, {mode}")
        base = self.meter.seconds()
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            assert process.stdout is not None
            for line in process.stdout:
                self.say(line.rstrip("\n"))
                if self.cpu_s_to_first_step is None and line.startswith("step 1/"):
                    self.cpu_s_to_first_step = self.meter.seconds() - base
        if process.returncode != 0:
            raise SystemExit(process.returncode)

    def report(self, heldout: Path, before: list[str], after: list[str]) -> dict[str, Any]:
        """Files, table and the result."""
        from examples.quickstart.heldout import accuracy, rows_of

        options, metrics, rows = self.options, self.run_dir / "metrics" / "metrics.jsonl", rows_of(heldout)
        rewards = report.reward_curve(metrics)
        scores = accuracy(rows, before), accuracy(rows, after)
        report.plot(rewards, *scores, f"{self.job.task}, seed {options.seed}", self.run_dir / "reward.png")
        report.write_heldout(self.run_dir / "heldout.jsonl", options.modality, rows, before, after)
        report.print_table(report.read_rows(self.run_dir / "heldout.jsonl"), options.modality, sys.stdout)
        self.say(f"      curve: {self.run_dir / 'reward.png'}   answers: {self.run_dir / 'heldout.jsonl'}")
        difference = report.largest(metrics, "train/engine_log_prob_diff/max")
        return {
            "modality": options.modality,
            "mode": "colocate" if options.colocate else "fully_async",
            "seed": options.seed,
            "heldout_before": scores[0],
            "heldout_after": scores[1],
            "reward_first10": report.mean(rewards[: report.WINDOW]),
            "reward_last10": report.mean(rewards[-report.WINDOW :]),
            "steps": len(rewards),
            "max_engine_trainer_diff": difference,
            "exact": None if difference is None else difference == 0.0,
            "cpu_s": self.meter.close(),
            "cpu_s_to_first_rl_step": self.cpu_s_to_first_step,
            "seconds": time.monotonic() - self.started_at,
            "run_dir": str(self.run_dir),
        }


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    demo = Demo(options, lambda text: print(text, flush=True))
    if options.prepare_only:
        demo.supervise(demo.prepare()[0])
        return
    result = demo.run()
    print(report.result_line(result), flush=True)


if __name__ == "__main__":
    main()
