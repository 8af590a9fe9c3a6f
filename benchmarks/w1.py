# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Workload W1 end to end: Relax beside TRL and beside B0, a hand-tuned one-file loop, in one run.

    python -m benchmarks.w1 --against FOLDER [--pairs 1] [--steps 10] [--skip-trl]

FOLDER holds `make_w1.py`, `b0.py` and `trl_grpo.py`. Wall and CPU seconds are of whole process trees and per step, the
first `--warm` steps left out; they come from interleaved runs, so compare ratios. The last line is `RESULT {json}`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relax.utils.cpu_meter import CpuMeter, descendants

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench"
PROMPTS, SAMPLES = 32, 8


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


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "GOMP_SPINCOUNT": "1000",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def make_fixture(against: Path) -> Path:
    folder = WORK / "w1"
    if not (folder / "fixture.json").exists():
        print("building the W1 model and data (about 2 CPU minutes, once)", flush=True)
        command = [sys.executable, str(against / "make_w1.py"), "--size", "w1", "--threads", "1", "--out", str(folder)]
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


def run_json_script(command: Sequence[str]) -> dict:
    """The JSON object on the last line that a peer's script prints."""
    done = subprocess.run(command, check=True, env=environment(), stdout=subprocess.PIPE, text=True, cwd=WORK)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def run_b0(against: Path, fixture: Path, steps: int) -> Run:
    script = [sys.executable, str(against / "b0.py"), "seq", "--threads", "2"]
    out = run_json_script([*script, "--steps", str(steps), "--fixture", str(fixture)])
    return Run(out["step_wall_med"], out["step_cpu_med"], rss_mb=out["rss_mb"], rewards=out["reward"])


def run_trl(against: Path, fixture: Path, steps: int) -> Run:
    script = [str(trl_python()), str(against / "trl_grpo.py"), "--threads", "2", "--micro", "32"]
    out = run_json_script([*script, "--steps", str(steps), "--fixture", str(fixture)])
    return Run(out["step_wall_med"], out["step_cpu_med"], rss_mb=out.get("rss_mb"), rewards=out.get("reward", []))


def relax_command(fixture: Path, run_dir: Path, steps: int, mode: Sequence[str]) -> list[str]:
    flags = {
        "--hf-checkpoint": fixture / "model",
        "--prompt-data": fixture / "train.jsonl",
        "--input-key": "prompt",
        "--label-key": "label",
        "--custom-rm-path": "benchmarks.rewards.sum_reward",
        "--num-rollout": steps,
        "--rollout-batch-size": PROMPTS,
        "--n-samples-per-prompt": SAMPLES,
        "--global-batch-size": PROMPTS * SAMPLES,
        "--rollout-max-response-len": 32,
        "--max-tokens-per-gpu": 4096,
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
    return [sys.executable, "-m", "relax.entrypoints.train", *switches, *mode, *pairs]


def run_relax(fixture: Path, steps: int, warm: int, mode: Sequence[str]) -> Run:
    """One run as a user would start it, with every process of its tree counted."""
    run_dir = WORK / "runs" / f"{time.time_ns()}"
    meter, started = CpuMeter(interval_s=0.2), time.monotonic()
    ends: list[tuple[float, float]] = []
    memory = (0.0, 0.0)
    command = relax_command(fixture, run_dir, steps + warm, mode)
    env = environment() | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step "):
                ends.append((time.monotonic() - started, meter.seconds()))
                if len(ends) == warm + 1:
                    memory = tree_memory(process.pid)
    if process.returncode:
        raise SystemExit(f"relax ended with {process.returncode}; see {run_dir / 'logs'}")
    meter.close()
    steps_wall = [b[0] - a[0] for a, b in zip(ends[warm - 1 :], ends[warm:], strict=False)]
    total_cpu = ends[-1][1] - ends[warm - 1][1]
    lines = [json.loads(line) for line in (run_dir / "metrics" / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["rollout/raw_reward/mean"] for line in lines if "rollout/raw_reward/mean" in line]
    return Run(
        statistics.median(steps_wall), total_cpu / len(steps_wall), ends[0][0], ends[0][1], *memory, rewards[warm:]
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


def table(results: dict[str, list[Run]]) -> str:
    lines = [
        f"{'engine':<16}{'wall s/step':>12}{'CPU s/step':>12}{'start-up s':>12}{'RSS MB':>9}  reward first 3, last 3"
    ]
    for name, runs in results.items():
        middle = lambda values: statistics.median(v for v in values if v is not None)  # noqa: E731
        setup = [r.setup_wall_s for r in runs if r.setup_wall_s is not None]
        rewards = runs[-1].rewards
        first, last = (statistics.mean(part) if part else float("nan") for part in (rewards[:3], rewards[-3:]))
        lines.append(
            f"{name:<16}{middle(r.step_wall_s for r in runs):>12.3f}{middle(r.step_cpu_s for r in runs):>12.3f}"
            f"{(middle(setup) if setup else float('nan')):>12.1f}{middle(r.rss_mb for r in runs):>9.0f}"
            f"  {first:.3f}, {last:.3f}"
        )
    return "\n".join(lines)


def ratios(results: dict[str, list[Run]]) -> dict[str, float]:
    """Relax over each peer: medians of wall and CPU seconds a step."""
    middle = {
        name: (statistics.median(r.step_wall_s for r in runs), statistics.median(r.step_cpu_s for r in runs))
        for name, runs in results.items()
    }
    out = {}
    for ours in ("relax_colocate", "relax_async"):
        for peer in ("trl", "b0"):
            if peer in middle:
                out[f"{ours}/{peer}_wall"] = round(middle[ours][0] / middle[peer][0], 3)
                out[f"{ours}/{peer}_cpu"] = round(middle[ours][1] / middle[peer][1], 3)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, required=True, help="folder of the workload and of the peers' scripts")
    parser.add_argument("--pairs", type=int, default=1, help="rounds in which every engine runs once")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--skip-trl", action="store_true")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    against = options.against.resolve()
    fixture = make_fixture(against)
    async_mode = ["--fully-async", "--max-staleness", "1", "--use-rollout-logprobs"]
    engines: dict[str, Callable[[], Run]] = {
        "b0": lambda: run_b0(against, fixture, options.steps),
        "relax_colocate": lambda: run_relax(fixture, options.steps, options.warm, ["--colocate"]),
        "relax_async": lambda: run_relax(fixture, options.steps, options.warm, async_mode),
    }
    if not options.skip_trl:
        engines["trl"] = lambda: run_trl(against, fixture, options.steps)
    results: dict[str, list[Run]] = {name: [] for name in engines}
    load = os.getloadavg()[0]
    for number in range(options.pairs):
        for name, run in engines.items():
            results[name].append(run())
            last = results[name][-1]
            print(
                f"round {number + 1} {name}: {last.step_wall_s:.3f} s, {last.step_cpu_s:.3f} CPU s a step", flush=True
            )
    print(table(results))
    result = {
        "step_wall_s": {n: round(statistics.median(r.step_wall_s for r in runs), 4) for n, runs in results.items()},
        "step_cpu_s": {n: round(statistics.median(r.step_cpu_s for r in runs), 4) for n, runs in results.items()},
        "setup_cpu_s": {n: runs[-1].setup_cpu_s for n, runs in results.items() if runs[-1].setup_cpu_s},
        "setup_wall_s": {n: runs[-1].setup_wall_s for n, runs in results.items() if runs[-1].setup_wall_s},
        "rss_mb": {n: runs[-1].rss_mb for n, runs in results.items()},
        "pss_mb": {n: runs[-1].pss_mb for n, runs in results.items() if runs[-1].pss_mb},
        "ratios": ratios(results),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
