# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Modes that must end with the same weights, bit for bit: workload W1 with a KL, as real runs on Ray.

    python -m benchmarks.equivalence [--against FOLDER] [--steps 5] [--cases NAME ...]

FOLDER holds `make_w1.py`. Cases with the same number of optimizer steps a rollout must have one hash, over the bytes
of every tensor of the exported weights; the controls (another seed, weights one rollout old) must have others. fp32,
one training process. The last line is `RESULT {json}`; the exit code is 1 when hashes do not come out as they must.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.side_by_side import ROOT, WORK, environment, make_fixture, relax_command
from benchmarks.w1 import W1
from relax.schedule.batch_plan import cut_by_tokens
from relax.utils.cpu_meter import CpuMeter
from relax.utils.errors import InfrastructureError

MAX_TOKENS = 2048  # of a micro-batch, where a rollout is one optimizer step: that has at least three of them
PARTS = 4
TRIES = 3  # a machine that is too busy to start Ray in time says nothing about the weights
KL = ("--use-kl-loss", "--kl-loss-coef", "0.05", "--kl-loss-type", "low_var_kl")
REFERENCE = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1],"advantages":[1,0]}'
FIVE = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1],"actor_fwd":[1,1],"advantages":[1,0]}'
ASYNC = ("--fully-async", "--max-staleness", "0", "--resource", REFERENCE)
# Old log-probs of the second optimizer step come from the trainer in every mode, so async needs the role for them.
ASYNC_OLD = ("--fully-async", "--max-staleness", "0", "--no-use-rollout-logprobs", "--resource", FIVE)
STREAMED = ("--num-iters-per-train-update", str(PARTS))


@dataclass(frozen=True)
class Case:
    """A run, and the cases whose weights it must share: those of the same `family`. Controls are alone in theirs."""

    words: tuple[str, ...]
    family: str
    steps_per_rollout: int = 1

    @property
    def streamed(self) -> bool:
        return STREAMED[0] in self.words

    @property
    def batch(self) -> int:
        """Samples of an optimizer step."""
        return W1.prompts * W1.samples // self.steps_per_rollout

    @property
    def max_tokens(self) -> int:
        """Of a micro-batch; an optimizer step has at least three of them."""
        return MAX_TOKENS // self.steps_per_rollout


CASES = {
    "colocate": Case(("--colocate",), "one step"),
    "hybrid": Case(("--hybrid",), "one step"),
    "async": Case(ASYNC, "one step"),
    "hybrid_streamed": Case(("--hybrid", *STREAMED), "one step"),
    "async_streamed": Case((*ASYNC, *STREAMED), "one step"),
    "colocate_2": Case(("--colocate",), "two steps", 2),
    "hybrid_2": Case(("--hybrid",), "two steps", 2),
    "async_2": Case(ASYNC_OLD, "two steps", 2),
    "hybrid_2_streamed": Case(("--hybrid", *STREAMED), "two steps", 2),
    "async_2_streamed": Case((*ASYNC_OLD, *STREAMED), "two steps", 2),
    "control_seed": Case(("--colocate", "--rollout-seed", "7"), "control_seed"),
    "control_stale": Case(("--hybrid", "--max-staleness", "1"), "control_stale"),
}


@dataclass
class Outcome:
    """What one run showed. Seconds are of the whole process tree, start-up included."""

    hash: str
    micro_batches: int  # fewest of an optimizer step
    early: int  # rollouts whose training began before their last group was bound
    kl: float  # mean of the last rollout, nats
    wall_s: float
    cpu_s: float


def run_case(case: Case, fixture: Path, steps: int, folder: Path) -> Outcome:
    """One run as a user would start it."""
    words = (*case.words, *KL, "--no-serve-http", "--save-hf", str(folder / "hf"))
    command = relax_command(W1, fixture, folder, steps, words)
    replaced = {
        "--max-tokens-per-gpu": case.max_tokens,
        "--global-batch-size": case.batch,
        "--rollout-result-dir": folder,
    }
    for flag, value in replaced.items():
        command[command.index(flag) + 1] = str(value)
    env = environment() | {"OMP_NUM_THREADS": "1"}
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        meter, started = CpuMeter(interval_s=0.5), time.monotonic()
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as process:
            code = process.wait()
        wall_s, cpu_s = time.monotonic() - started, meter.seconds()
        meter.close()
        if code != InfrastructureError.exit_code:
            break
    if code:
        raise SystemExit(f"relax ended with {code}: {' '.join(command)}; see {folder / 'logs'}")
    lines = [json.loads(line) for line in (folder / "metrics" / "metrics.jsonl").read_text().splitlines()]
    kl = [line["train/kl_ref"] for line in lines if "train/kl_ref" in line]
    return Outcome(
        weight_hash(folder / "hf"),
        min(micro_batches(folder, rollout_id, case) for rollout_id in range(steps)),
        begun_early(folder),
        kl[-1],
        wall_s,
        cpu_s,
    )


def weight_hash(folder: Path) -> str:
    """Over names, shapes and bytes of every tensor, in the order of names."""
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    tensors = {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def micro_batches(folder: Path, rollout_id: int, case: Case) -> int:
    """Fewest micro-batches of the optimizer steps of a rollout, from the lengths of its samples."""
    path = folder / "rollout_result" / "train" / f"{rollout_id}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lengths = [row["prompt_tokens"] + row["response_tokens"] for row in rows]
    steps = [lengths[start : start + case.batch] for start in range(0, len(lengths), case.batch)]
    return min(len(cut_by_tokens(step, case.max_tokens)) for step in steps)


def begun_early(folder: Path) -> int:
    """Rollouts of which the journal says that training took them before their last part was bound."""
    events = [json.loads(line) for line in (folder / "journal" / "driver.jsonl").read_text().splitlines()]
    whole: set[int] = set()
    early = 0
    for event in events:
        if event.get("kind") == "bound" and event["last"]:
            whole.add(event["rollout_id"])
        elif event.get("kind") == "taken":
            early += event["rollout_id"] not in whole
    return early


def verdict(outcomes: dict[str, Outcome]) -> tuple[bool, list[str]]:
    """Whether all is as it must be, and what is not."""
    wrong = []
    hashes: dict[str, set[str]] = {}
    for name, outcome in outcomes.items():
        hashes.setdefault(CASES[name].family, set()).add(outcome.hash)
        if outcome.micro_batches < 3:
            wrong.append(f"{name}: {outcome.micro_batches} micro-batches in a step, fewer than 3")
        if not outcome.kl > 0:
            wrong.append(f"{name}: the KL to the reference is {outcome.kl}")
        if CASES[name].streamed and not outcome.early:
            wrong.append(f"{name}: no rollout was trained before it was whole")
    wrong += [f"{family}: {len(found)} different weights" for family, found in hashes.items() if len(found) > 1]
    once = [value for found in hashes.values() for value in found]
    if len(once) != len(set(once)):
        wrong.append("families that must differ have the same weights")
    return not wrong, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, default=Path("../shared/bench"), help="folder of make_w1.py")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    fixture = make_fixture(W1, options.against.resolve())
    outcomes: dict[str, Outcome] = {}
    for name in options.cases:
        found = outcomes[name] = run_case(CASES[name], fixture, options.steps, WORK / "equivalence" / name)
        print(
            f"{name:<20}{found.hash[:16]}  micro-batches {found.micro_batches}  begun early {found.early}  "
            f"KL {found.kl:.2e}  {found.wall_s:.0f} s, {found.cpu_s:.0f} CPU s",
            flush=True,
        )
    equal, wrong = verdict(outcomes)
    for text in wrong:
        print(text)
    result = {
        "equal": equal,
        "hashes": {name: outcome.hash[:16] for name, outcome in outcomes.items()},
        "steps": options.steps,
        "min_micro_batches": min(outcome.micro_batches for outcome in outcomes.values()),
        "begun_early": {name: outcome.early for name, outcome in outcomes.items() if CASES[name].streamed},
        "wrong": wrong,
        "cpu_s": round(statistics.median(outcome.cpu_s for outcome in outcomes.values()), 1),
        "wall_s": round(statistics.median(outcome.wall_s for outcome in outcomes.values()), 1),
    }
    print("RESULT " + json.dumps(result))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
