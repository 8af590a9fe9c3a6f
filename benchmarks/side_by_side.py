# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Relax beside peers on one workload, in interleaved runs of one command.

Peers: TRL at its best setting, and B0, a hand-tuned one-file loop. The folder given by `--against` holds their scripts
`trl_grpo.py` and `b0.py` and the workload's `make_w1.py`. Wall and CPU seconds are of whole process trees and per
step, the first steps left out; other load of the machine moves both sides, so compare ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relax.utils.cpu_meter import CpuMeter, descendants

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench"
MODES = {
    "relax_colocate": ("--colocate",),
    "relax_async": ("--fully-async", "--max-staleness", "1", "--use-rollout-logprobs"),
    "relax_async_3": ("--fully-async", "--max-staleness", "3", "--use-rollout-logprobs"),
}


@dataclass(frozen=True)
class Workload:
    """One GRPO workload: `prompts` x `samples` responses of at most `max_new` tokens a step."""

    name: str
    fixture: tuple[str, ...]  # arguments of make_w1.py besides --out
    prompts: int
    samples: int
    max_new: int
    max_tokens: int  # of a micro-batch
    peers: Mapping[str, tuple[str, ...]]  # name -> script and its arguments
    modes: tuple[str, ...] = ("relax_colocate", "relax_async")
    reward: str = "benchmarks.rewards.sum_reward"
    goals: Mapping[str, float] = field(default_factory=dict)  # ratio -> at most
    extra: tuple[str, ...] = ()  # further flags of Relax


@dataclass
class Run:
    """What one run of one engine measured; seconds are medians over its steps where they say `step`."""

    step_wall_s: float
    step_cpu_s: float
    setup_wall_s: float | None = None
    setup_cpu_s: float | None = None
    rss_mb: float | None = None
    pss_mb: float | None = None
    rewards: list[float] = field(default_factory=list)
    metrics: list[dict] = field(default_factory=list)  # of Relax's steps


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "GOMP_SPINCOUNT": "1000",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def make_fixture(workload: Workload, against: Path) -> Path:
    """The workload's model and data; made once for each set of arguments."""
    folder = WORK / "-".join(text.strip("-") for text in workload.fixture)
    if not (folder / "fixture.json").exists():
        print(f"building the model and data of {workload.name} (once)", flush=True)
        command = [sys.executable, str(against / "make_w1.py"), *workload.fixture, "--threads", "1"]
        command += ["--out", str(folder)]
        subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
    return folder


def trl_python() -> Path:
    """An environment of its own for TRL, made once."""
    python = WORK / "trl-venv" / "bin" / "python"
    if not (python.parent / ".installed").exists():
        print("installing TRL into its own environment (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        pip = [str(python), "-m", "pip", "install", "-qq"]
        subprocess.run([*pip, "torch==2.13.0", "numpy"], check=True, stderr=subprocess.DEVNULL)
        packages = ["trl==1.16.0", "transformers==5.24.0", "accelerate==1.15.0", "datasets"]
        subprocess.run([*pip, *packages], check=True, stderr=subprocess.DEVNULL)
        (python.parent / ".installed").touch()
    return python


# ---------------------------------------------------------------------- the engines


def run_peer(workload: Workload, name: str, against: Path, fixture: Path, steps: int) -> Run:
    """A peer's script; the last line that it prints is a JSON object."""
    script, *arguments = workload.peers[name]
    python = trl_python() if script.startswith("trl") else Path(sys.executable)
    command = [str(python), str(against / script), *arguments, "--steps", str(steps), "--fixture", str(fixture)]
    done = subprocess.run(command, check=True, env=environment(), stdout=subprocess.PIPE, text=True, cwd=WORK)
    out = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    cpu = out.get("step_cpu_med")
    if cpu is None:  # two processes, each with its own clock
        cpu = out["gen_cpu_med"] + out["train_cpu_med"]
    rss = out.get("rss_mb")
    return Run(
        out["step_wall_med"], cpu, rss_mb=sum(rss) if isinstance(rss, list) else rss, rewards=out.get("reward", [])
    )


def relax_command(workload: Workload, fixture: Path, run_dir: Path, steps: int, mode: Sequence[str]) -> list[str]:
    flags = {
        "--hf-checkpoint": fixture / "model",
        "--prompt-data": fixture / "train.jsonl",
        "--input-key": "prompt",
        "--label-key": "label",
        "--custom-rm-path": workload.reward,
        "--num-rollout": steps,
        "--rollout-batch-size": workload.prompts,
        "--n-samples-per-prompt": workload.samples,
        "--global-batch-size": workload.prompts * workload.samples,
        "--rollout-max-response-len": workload.max_new,
        "--max-tokens-per-gpu": workload.max_tokens,
        "--lr": 1e-4,
        "--adam-beta2": 0.999,
        "--clip-grad": 1.0,
        "--eps-clip": 0.2,
        "--rollout-result-dir": "",
        "--serve-port": 0,
        "--save": run_dir,
    }
    pairs = [text for name, value in flags.items() for text in (name, str(value))]
    switches = ["--rollout-shuffle", "--calculate-per-token-loss", "--use-dynamic-batch-size", "--no-use-tensorboard"]
    return [sys.executable, "-m", "relax.entrypoints.train", *switches, *workload.extra, *mode, *pairs]


def run_relax(workload: Workload, fixture: Path, steps: int, warm: int, mode: Sequence[str]) -> Run:
    """One run as a user would start it, with every process of its tree counted."""
    run_dir = WORK / "runs" / f"{time.time_ns()}"
    meter, started = CpuMeter(interval_s=0.2), time.monotonic()
    ends: list[tuple[float, float]] = []
    memory = (0.0, 0.0)
    command = relax_command(workload, fixture, run_dir, steps + warm, mode)
    env = environment() | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step "):
                ends.append((time.monotonic() - started, meter.seconds()))
                if len(ends) == warm + 1:
                    memory = tree_memory(process.pid)
            elif line.startswith("critical path"):
                print("  " + line, end="", flush=True)
    if process.returncode:
        raise SystemExit(f"relax ended with {process.returncode}; see {run_dir / 'logs'}")
    meter.close()
    steps_wall = [b[0] - a[0] for a, b in zip(ends[warm - 1 :], ends[warm:], strict=False)]
    total_cpu = ends[-1][1] - ends[warm - 1][1]
    lines = [json.loads(line) for line in (run_dir / "metrics" / "metrics.jsonl").read_text().splitlines()]
    metrics = [line for line in lines if "perf/step_s" in line][warm:]
    return Run(
        statistics.median(steps_wall),
        total_cpu / len(steps_wall),
        *ends[0],
        *memory,
        rewards=[line["rollout/raw_reward/mean"] for line in metrics if "rollout/raw_reward/mean" in line],
        metrics=metrics,
    )


def tree_memory(root: int) -> tuple[float, float]:
    """(RSS, PSS) in MB, summed over a process and everything below it."""
    rss = pss = 0.0
    for stat in descendants(root):
        try:
            text = Path(f"/proc/{stat.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile
        sizes = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
        rss += int(sizes["Rss"]) / 1024
        pss += int(sizes["Pss"]) / 1024
    return rss, pss


# ---------------------------------------------------------------------- report


def middle(values: Sequence[float | None]) -> float:
    """Median of what was measured."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else float("nan")


def table(results: Mapping[str, Sequence[Run]]) -> str:
    lines = [
        f"{'engine':<16}{'wall s/step':>12}{'CPU s/step':>12}{'start-up s':>12}{'RSS MB':>9}  reward first 3, last 3"
    ]
    for name, runs in results.items():
        rewards = runs[-1].rewards
        first, last = (statistics.mean(part) if part else float("nan") for part in (rewards[:3], rewards[-3:]))
        lines.append(
            f"{name:<16}{middle([r.step_wall_s for r in runs]):>12.3f}{middle([r.step_cpu_s for r in runs]):>12.3f}"
            f"{middle([r.setup_wall_s for r in runs]):>12.1f}{middle([r.rss_mb for r in runs]):>9.0f}"
            f"  {first:.3f}, {last:.3f}"
        )
    return "\n".join(lines)


def ratios(results: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """Of every pair of Relax with another engine: medians over the rounds of wall and CPU seconds a step."""
    out = {}
    for ours in (name for name in results if name.startswith("relax")):
        for other in (name for name in results if name != ours):
            if other.startswith("relax") and other != "relax_colocate":
                continue
            for kind in ("wall", "cpu"):
                pairs = [
                    getattr(a, f"step_{kind}_s") / getattr(b, f"step_{kind}_s")
                    for a, b in zip(results[ours], results[other], strict=True)
                ]
                out[f"{ours}/{other}_{kind}"] = round(statistics.median(pairs), 3)
    return out


Summary = Callable[[Mapping[str, Sequence[Run]]], dict]


def compare(workload: Workload, documentation: str, summarise: Summary | None = None) -> None:
    """Command line of one workload's benchmark."""
    parser = argparse.ArgumentParser(description=documentation.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True, help="folder of the workload and of the peers' scripts")
    parser.add_argument("--pairs", type=int, default=1, help="rounds in which every engine runs once")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm", type=int, default=2, help="steps at the start that do not count")
    parser.add_argument("--skip", nargs="*", default=(), metavar="ENGINE", help="engines to leave out")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    against = options.against.resolve()
    fixture = make_fixture(workload, against)
    names = [name for name in (*workload.peers, *workload.modes) if name not in options.skip]
    results: dict[str, list[Run]] = {name: [] for name in names}
    load = os.getloadavg()[0]
    for number in range(options.pairs):
        for name in names:
            run = (
                run_peer(workload, name, against, fixture, options.steps)
                if name in workload.peers
                else run_relax(workload, fixture, options.steps, options.warm, MODES[name])
            )
            results[name].append(run)
            print(f"round {number + 1} {name}: {run.step_wall_s:.3f} s, {run.step_cpu_s:.3f} CPU s a step", flush=True)
    print(table(results))
    found = ratios(results)
    goals = {name: {"ratio": found[name], "at_most": goal} for name, goal in workload.goals.items() if name in found}
    for name, goal in goals.items():
        print(f"{name}: {goal['ratio']:.2f}, goal {goal['at_most']:.2f}")
    ours = {name: runs for name, runs in results.items() if name.startswith("relax")}
    result = {
        "workload": workload.name,
        "step_wall_s": {n: round(middle([r.step_wall_s for r in runs]), 4) for n, runs in results.items()},
        "step_cpu_s": {n: round(middle([r.step_cpu_s for r in runs]), 4) for n, runs in results.items()},
        "setup_cpu_s": {n: round(middle([r.setup_cpu_s for r in runs]), 1) for n, runs in ours.items()},
        "setup_wall_s": {n: round(middle([r.setup_wall_s for r in runs]), 1) for n, runs in ours.items()},
        "rss_mb": {n: round(middle([r.rss_mb for r in runs])) for n, runs in results.items()},
        "pss_mb": {n: round(middle([r.pss_mb for r in runs])) for n, runs in ours.items()},
        "ratios": found,
        "goals_met": {name: goal["ratio"] <= goal["at_most"] for name, goal in goals.items()},
        **(summarise(results) if summarise else {}),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    print("RESULT " + json.dumps(result))
