# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A judge model instead of a rule: the quick start's model learns to read digits from another model's verdicts.

judge by supervised training -> cold start -> GRPO by `relax.entrypoints.train`, scored by the judge's engine

python -m examples.generate_reward_model.demo [--steps 40] [--seed 0]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from examples.generate_reward_model.judge import train_judge
from examples.quickstart import demo as quickstart
from examples.quickstart import report

RULE, JUDGE = "examples.quickstart.reward.digit_reward", "examples.generate_reward_model.reward.judged_answer"
SAMPLING = '{"temperature": 0, "max_response_len": 2}'


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="rollouts, of 32 prompts with 8 samples each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/judged-...)")
    return parser.parse_args(argv)


def train_flags(options: argparse.Namespace, run_dir: Path, judge: Path) -> list[str]:
    """The quick start's command in one process, with the judge in place of the rule."""
    words = quickstart.train_flags(options, quickstart.JOBS["image"], run_dir)
    words = [JUDGE if word == RULE else word for word in words]
    return [*words, "--inline", "--genrm-model-path", str(judge), "--genrm-sampling-config", SAMPLING]


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from examples.quickstart.heldout import accuracy, answers, rows_of

    def say(text: str) -> None:
        print(text, flush=True)

    started = time.monotonic()
    words = ["--steps", str(options.steps), "--seed", str(options.seed), "--run-dir", str(folder), "--colocate"]
    job = quickstart.Demo(quickstart.parse(words), say)
    train, heldout = job.prepare()
    judge, agreement = train_judge(folder, seed=options.seed, say=say)
    say(f"judge: {agreement:.2f} of all pairs of digits judged rightly")
    job.supervise(train)
    command = [sys.executable, "-m", "relax.entrypoints.train", *train_flags(job.options, folder, judge)]
    if (code := subprocess.run(command, cwd=quickstart.ROOT, check=False).returncode) != 0:
        raise SystemExit(code)
    before, after = (accuracy(rows_of(heldout), answers(folder / name, heldout)) for name in ("hf_before", "hf_after"))
    rewards = report.reward_curve(folder / "metrics" / "metrics.jsonl")
    return {
        "judge_right": agreement,
        "heldout_before": before,
        "heldout_after": after,
        "reward_first10": report.mean(rewards[: report.WINDOW]),
        "reward_last10": report.mean(rewards[-report.WINDOW :]),
        "steps": len(rewards),
        "seconds": time.monotonic() - started,
        "run_dir": str(folder),
    }


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = (options.run_dir or quickstart.ROOT / "runs" / f"judged-s{options.seed}-{stamp}").resolve()
    result = run(options, folder)
    print(
        f"the judge's reward {result['reward_first10']:.3f} -> {result['reward_last10']:.3f}; held-out accuracy, by "
        f"exact match, {result['heldout_before']:.3f} -> {result['heldout_after']:.3f}"
    )
    print(report.result_line(result), flush=True)


if __name__ == "__main__":
    main()
