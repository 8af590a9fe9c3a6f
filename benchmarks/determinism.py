# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Does an asynchronous run repeat itself? Real Ray runs, two engines, staleness 1, filter, over-sampling, sleeps.

    python -m benchmarks.determinism [--runs 3] [--rollouts 8]

Runs with `--deterministic` and other sleeps at five named points (reward, decode step, put, publish, admit) must have
equal decisions, equal bytes in the trace and equal weights at every version. As a control, runs without the flag under
the same sleeps must not. Overheads are ratios of time per step, deterministic over free, without and with sleeps.
The last line is `RESULT {json}`; the exit code is 1 when it falls short.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax.schedule import events as ev
from relax.schedule.journal import read_journal
from relax.utils.faults import VARIABLE

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench" / "determinism"
PROMPTS, SURPLUS, SAMPLES = 8, 4, 4
SLEEPS = {
    "reward": {"sleep_s": 0.4},
    "decode_step": {"sleep_s": 0.03, "chance": 0.3},
    "put": {"sleep_s": 0.4},
    "publish": {"sleep_s": 0.4},
    "admit": {"sleep_s": 0.4},
}


@dataclass(frozen=True)
class Evidence:
    """What a finished run left behind."""

    decisions: tuple[ev.Event, ...]
    trace: dict[str, str]  # {file: digest of its bytes}
    weights: dict[int, str]  # {version: digest of the checksums of all tensors}
    step_s: float  # mean over all steps but the first, which waits for the engines' first tokens

    @property
    def weight_hash(self) -> str:
        return self.weights[max(self.weights)]


def inputs() -> tuple[Path, Path]:
    """(model folder, prompts): an untrained tiny model, made once."""
    from examples.quickstart.data import write_data
    from examples.quickstart.model import build_model

    model, data = WORK / "model", WORK / "data"
    if not (WORK / ".made").exists():
        build_model(model, seed=0, layers=2)
        write_data("text", data)
        (WORK / ".made").touch()
    return model, data / "text-train.jsonl"


def command(model: Path, prompts: Path, folder: Path, rollouts: int, deterministic: bool) -> list[str]:
    flags = {
        "--hf-checkpoint": model,
        "--prompt-data": prompts,
        "--input-key": "prompt",
        "--label-key": "label",
        "--custom-rm-path": "benchmarks.rewards.checksum_reward",
        "--dynamic-sampling-filter-path": "relax.engine.filters.dynamic.check_reward_nonzero_std",
        "--resource": '{"actor": [1, 1], "rollout": [1, 2]}',
        "--max-staleness": 1,
        "--num-rollout": rollouts,
        "--rollout-batch-size": PROMPTS,
        "--over-sampling-batch-size": PROMPTS + SURPLUS,
        "--n-samples-per-prompt": SAMPLES,
        "--rollout-max-response-len": 12,
        "--lr": 1e-3,
        "--rollout-result-dir": "",
        "--serve-port": 0,
        "--save": folder,
    }
    switches = ["--fully-async", "--use-rollout-logprobs", "--apply-chat-template", "--rollout-shuffle"]
    switches += ["--no-use-tensorboard", *(["--deterministic"] if deterministic else [])]
    words = [text for name, value in flags.items() for text in (name, str(value))]
    return [sys.executable, "-m", "relax.entrypoints.train", *switches, *words]


def faults(seed: int | None) -> dict[str, str]:
    """The environment of a run: sleeps by a seed, or none."""
    if seed is None:
        return {}
    rules = [{"point": point, **sleep} for point, sleep in SLEEPS.items()]
    return {VARIABLE: json.dumps({"seed": seed, "rules": rules})}


def run(model: Path, prompts: Path, rollouts: int, *, deterministic: bool, seed: int | None) -> Evidence:
    name = f"{'deterministic' if deterministic else 'free'}-{'quiet' if seed is None else seed}"
    folder = WORK / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "", "PYTHONPATH": path, **faults(seed)}
    started = time.monotonic()
    words = command(model, prompts, folder, rollouts, deterministic)
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found = evidence(folder)
    seconds = time.monotonic() - started
    print(
        f"{name:<20} {seconds:6.1f} s, {found.step_s:.3f} s a step, {len(found.decisions)} decisions, "
        f"weights {found.weight_hash[:16]}",
        flush=True,
    )
    return found


def evidence(folder: Path) -> Evidence:
    events = [event for _, event in read_journal(folder / "journal" / "driver.jsonl")]
    weights = {
        event.version: hashlib.sha256(json.dumps(dict(event.tensors), sort_keys=True).encode()).hexdigest()
        for event in events
        if isinstance(event, ev.Weights)
    }
    trace = {p.name: hashlib.sha256(traced(p)).hexdigest() for p in sorted((folder / "trace").iterdir())}
    rows = [json.loads(line) for line in (folder / "metrics" / "metrics.jsonl").read_text().splitlines()]
    steps = [row["perf/step_s"] for row in rows if "perf/step_s" in row]
    return Evidence(tuple(decisions(events)), trace, weights, statistics.mean(steps[1:]))


def traced(path: Path) -> bytes:
    """Blocks byte for byte; notes without the seconds that each group took."""
    data = path.read_bytes()
    if path.suffix != ".jsonl":
        return data
    return json.dumps([{**json.loads(line), "seconds": None} for line in data.splitlines()]).encode()


def decisions(events: list[ev.Event]) -> list[ev.Event]:
    """Decisions in order, without what names the run: its id and the folder of a checkpoint."""
    named = {ev.RunStarted: "run_id", ev.Checkpointed: "path"}
    out = []
    for event in events:
        if event.decision:
            name = named.get(type(event))
            out.append(type(event)(**{**vars(event), name: ""}) if name else event)
    return out


def first_difference(a: Evidence, b: Evidence) -> str | None:
    """Where two runs part, in words; None when they don't."""
    for number, (left, right) in enumerate(zip(a.decisions, b.decisions, strict=False)):
        if left != right:
            return f"decision {number}: {left} and {right}"
    if len(a.decisions) != len(b.decisions):
        return f"{len(a.decisions)} and {len(b.decisions)} decisions"
    for what, left, right in (("trace file", a.trace, b.trace), ("weights of version", a.weights, b.weights)):
        for key in left.keys() | right.keys():
            if left.get(key) != right.get(key):
                return f"{what} {key}"
    return None


def summary(quiet: Evidence, noisy: list[Evidence], free_quiet: Evidence, free: list[Evidence]) -> dict[str, Any]:
    """The RESULT of all runs."""
    differences = [found for other in noisy if (found := first_difference(quiet, other)) is not None]
    controls = [first_difference(free[0], other) for other in free[1:]]
    for text in differences:
        print(f"not equal: {text}")
    print(f"control: {controls[0]}")
    drops: dict[str, int] = {}
    for event in quiet.decisions:
        if isinstance(event, ev.Dropped):
            reason = "surplus" if event.reason == "surplus" else "filter"
            drops[reason] = drops.get(reason, 0) + 1
    return {
        "equal": not differences,
        "control_differs": all(found is not None for found in controls),
        "runs": len(noisy),
        "weight_hash": quiet.weight_hash,
        "versions": len(quiet.weights),
        "decisions": len(quiet.decisions),
        "trace_files": len(quiet.trace),
        "drops": drops,
        "overhead": round(quiet.step_s / free_quiet.step_s, 3),
        "overhead_with_sleeps": round(
            statistics.mean(e.step_s for e in noisy[: len(free)]) / statistics.mean(e.step_s for e in free), 3
        ),
        "step_s": {"deterministic": round(quiet.step_s, 4), "free": round(free_quiet.step_s, 4)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="deterministic runs with sleeps, beside the one without")
    parser.add_argument("--rollouts", type=int, default=8)
    options = parser.parse_args()
    if options.runs < 1 or options.rollouts < 2:
        parser.error("--runs must be at least 1 and --rollouts at least 2")
    WORK.mkdir(parents=True, exist_ok=True)
    model, prompts = inputs()
    quiet, free_quiet = (run(model, prompts, options.rollouts, deterministic=d, seed=None) for d in (True, False))
    noisy, free = [], []
    for seed in range(1, max(options.runs, 2) + 1):
        if seed <= options.runs:
            noisy.append(run(model, prompts, options.rollouts, deterministic=True, seed=seed))
        if seed <= 2:
            free.append(run(model, prompts, options.rollouts, deterministic=False, seed=seed))
    result = summary(quiet, noisy, free_quiet, free)
    print("RESULT " + json.dumps(result))
    if not (result["equal"] and result["control_differs"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
