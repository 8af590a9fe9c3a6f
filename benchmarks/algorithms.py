# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Does every algorithm learn? Short runs of the quick start's task, held-out accuracy before and after, two seeds.

One cold start a seed; every algorithm goes on from it with the same prompts, learning rate and number of rollouts, in
one process (`--inline --colocate`). All but rloo take two optimizer steps a rollout, so that their ratios matter.

python -m benchmarks.algorithms [--seeds 0 1] [--steps 20] [--only gspo,sapo] [--modality image]
python -m benchmarks.algorithms --tiny     # a random model of two layers learns to prefer even ids
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from examples.quickstart.demo import JOBS, ROOT, Demo, parse, train_flags
from relax.algorithms.spec import ALGOS

ESTIMATOR_FLAGS: dict[str, tuple[str, ...]] = {
    "gspo": ("--eps-clip", "0.02"),
    "cispo": ("--eps-clip-high", "4"),
    "rloo": ("--num-steps-per-rollout", "1"),
    "ppo": (
        *("--resource", '{"actor": [1, 1], "critic": [1, 1], "rollout": [1, 1]}'),
        *("--critic-lr", "1e-3", "--lambd", "0.95", "--num-critic-only-steps", "2"),
    ),
    "reinforce_plus_plus": ("--kl-coef", "0.001"),
    "reinforce_plus_plus_baseline": ("--use-kl-loss", "--kl-loss-coef", "0.001", "--kl-loss-type", "k2"),
}
# of the quick start's command: what belongs to one algorithm or one mode alone
LEFT_OUT = ("--disable-grpo-std-normalization", "--fully-async", "--colocate", "--use-rollout-logprobs")
LEFT_OUT_PAIRS = ("--max-staleness", "--eps-clip", "--global-batch-size", "--serve-port", "--advantage-estimator")


@dataclass(frozen=True)
class Outcome:
    estimator: str
    seed: int
    before: float  # held-out accuracy, greedy
    after: float
    first_reward: float  # mean of the first and of the last five rollouts
    last_reward: float
    seconds: float


def command(estimator: str, options: argparse.Namespace, cold: Path, run_dir: Path) -> list[str]:
    """The quick start's command with another algorithm, in one process."""
    job = JOBS[options.modality]
    words = iter(train_flags(options, job, cold))
    kept: list[str] = []
    for word in words:
        if word in LEFT_OUT_PAIRS:
            next(words)
        elif word not in LEFT_OUT:
            kept.append(word)
    own = ESTIMATOR_FLAGS.get(estimator, ())
    steps = () if "--num-steps-per-rollout" in own else ("--num-steps-per-rollout", "2")
    kept += ["--rollout-batch-size", str(options.prompts)]
    kept += ["--inline", "--bus", "local", "--colocate", "--advantage-estimator", estimator, *steps, *own]
    kept += ["--save", str(run_dir), "--save-hf", str(run_dir / "hf_after")]
    return [sys.executable, "-m", "relax.entrypoints.train", *kept]


def train(estimator: str, options: argparse.Namespace, demo: Demo, heldout: Path, before: float) -> Outcome:
    from examples.quickstart import report
    from examples.quickstart.heldout import accuracy, answers, rows_of

    run_dir, started = demo.run_dir.parent / f"{estimator}-s{options.seed}", time.monotonic()
    done = subprocess.run(
        command(estimator, options, demo.run_dir, run_dir),
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{estimator}, seed {options.seed}, ended with {done.returncode}:\n{done.stderr[-3000:]}")
    after = accuracy(rows_of(heldout), answers(run_dir / "hf_after", heldout))
    rewards = report.reward_curve(run_dir / "metrics" / "metrics.jsonl")
    first, last = (sum(part) / len(part) for part in (rewards[:5], rewards[-5:]))
    return Outcome(estimator, options.seed, before, after, first, last, time.monotonic() - started)


def train_tiny(estimator: str, seed: int, given: argparse.Namespace, folder: Path) -> Outcome:
    """The same on a random model, in this process. Accuracy is the share of even ids in first and last rollouts."""
    from relax.entrypoints.train import main as train_main
    from tests.builders import build_tiny_model_folder, write_jsonl

    inputs, started = folder / f"inputs-s{seed}", time.monotonic()
    if not inputs.exists():
        build_tiny_model_folder(inputs / "model")
        write_jsonl(
            inputs / "prompts.jsonl",
            [{"input": f"{a} + {b} =", "label": str(a + b)} for a in range(8) for b in range(8)],
        )
    run_dir = folder / f"{estimator}-s{seed}"
    own = ESTIMATOR_FLAGS.get(estimator, ())
    steps = () if "--num-steps-per-rollout" in own else ("--num-steps-per-rollout", "2")
    flags = {
        "--hf-checkpoint": inputs / "model",
        "--prompt-data": inputs / "prompts.jsonl",
        "--custom-rm-path": "benchmarks.rewards.even_share",
        "--num-rollout": given.steps,
        "--rollout-batch-size": given.prompts,
        "--n-samples-per-prompt": 8,
        "--rollout-max-response-len": 8,
        "--rollout-seed": seed,
        "--seed": seed,
        "--lr": 2e-3,
        "--save": run_dir,
        "--advantage-estimator": estimator,
    }
    words = ["--inline", "--bus", "local", "--colocate", "--no-use-tensorboard", *steps, *own]
    words += [text for name, value in flags.items() for text in (name, str(value))]
    with contextlib.redirect_stdout(io.StringIO()):
        code = train_main(words)
    if code != 0:
        raise SystemExit(f"{estimator}, seed {seed}, ended with {code}")
    rows = [json.loads(line) for line in (run_dir / "metrics" / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["rollout/reward/mean"] for row in rows if "rollout/reward/mean" in row]
    first, last = (sum(part) / len(part) for part in (rewards[:3], rewards[-3:]))
    return Outcome(estimator, seed, first, last, first, last, time.monotonic() - started)


def table(outcomes: list[Outcome]) -> str:
    """Markdown, one line an algorithm, seeds side by side."""
    seeds = sorted({o.seed for o in outcomes})
    head = " | ".join(f"seed {seed}: accuracy, reward" for seed in seeds)
    lines = [f"| algorithm | {head} |", "|---" * (len(seeds) + 1) + "|"]
    for name in dict.fromkeys(o.estimator for o in outcomes):
        cells = []
        for seed in seeds:
            found = [o for o in outcomes if (o.estimator, o.seed) == (name, seed)]
            cells += [
                f"{o.before:.3f} → {o.after:.3f}, {o.first_reward:.3f} → {o.last_reward:.3f}" for o in found
            ] or ["-"]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="algorithms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=20, help="rollouts")
    parser.add_argument("--prompts", type=int, default=16, help="of one rollout; 8 samples each")
    parser.add_argument("--sft-steps", type=int, default=80, help="of the cold start")
    parser.add_argument("--only", help="algorithms, by a comma list")
    parser.add_argument("--modality", choices=tuple(JOBS), default="image")
    parser.add_argument("--tiny", action="store_true", help="the small task instead of the quick start's")
    parser.add_argument("--keep", type=Path, help="folder of the runs (default: a temporary one)")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(ALGOS)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="relax-algorithms-") as scratch:
        folder = (given.keep or Path(scratch)).resolve()
        for seed in given.seeds if given.tiny else ():
            for name in names:
                outcomes.append(train_tiny(name, seed, given, folder))
                print(outcomes[-1], flush=True)
        for seed in () if given.tiny else given.seeds:
            words = ["--modality", given.modality, "--seed", str(seed), "--steps", str(given.steps)]
            words += ["--sft-steps", str(given.sft_steps)]
            options = parse([*words, "--run-dir", str(folder / f"cold-s{seed}")])
            options.prompts = given.prompts
            demo = Demo(options, lambda text: print(text, file=sys.stderr, flush=True))
            data = demo.prepare()
            demo.supervise(data[0])
            from examples.quickstart.heldout import accuracy, rows_of

            before = accuracy(rows_of(data[1]), demo.answer("hf_before", data[1]))
            for name in names:
                outcomes.append(train(name, options, demo, data[1], before))
                print(outcomes[-1], flush=True)
    print(table(outcomes))
    learned = [o for o in outcomes if o.after > o.before]
    result = {
        "algorithms": len(names),
        "seeds": len(given.seeds),
        "steps": given.steps,
        "samples_a_step": given.prompts * 8,
        "runs": len(outcomes),
        "task": "tiny" if given.tiny else given.modality,
        "learned": len(learned),
        "least_gain": min(o.after - o.before for o in outcomes),
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
