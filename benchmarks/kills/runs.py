# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One attempt of a training run: as a fork of this process with all roles inside, or as the command with Ray.

A fork has torch, transformers and Relax imported already, so an attempt costs a second or two. Everything that a run
does after its imports happens in it as in a run of its own.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks.kills.evidence import Inputs
from relax.core.resume import FORGET_VARIABLE
from relax.utils import faults

ROOT = Path(__file__).parents[2]
BATCH, SAMPLES, ROLLOUTS = 2, 2, 8
GROUPS = BATCH * ROLLOUTS
HUNG_S = 300.0  # a process that has not ended by then is hung
TITLES = {"bus": "ray::TransferQueueController", "coordinator": "ray::ServeReplica:control"}


@dataclass(frozen=True)
class Mode:
    """`exact`: its final weights must be those of the run without a kill."""

    name: str
    flags: tuple[str, ...]
    exact: bool
    save_interval: int = 1


MODES = {
    "on_policy": Mode("on_policy", ("--max-staleness", "0"), exact=True),
    "async": Mode("async", ("--max-staleness", "1", "--use-rollout-logprobs"), exact=False),
    "colocate": Mode("colocate", ("--colocate",), exact=True),
    "deterministic": Mode(
        "deterministic", ("--max-staleness", "1", "--use-rollout-logprobs", "--deterministic"), True, save_interval=2
    ),
}


def flags(inputs: Inputs, mode: Mode, folder: Path, *, ray: bool, http: bool = False) -> list[str]:
    values: dict[str, Any] = {
        "hf_checkpoint": inputs.model,
        "prompt_data": inputs.prompts,
        "custom_rm_path": "benchmarks.kills.evidence.remainder_reward",
        "rollout_batch_size": BATCH,
        "n_samples_per_prompt": SAMPLES,
        "num_rollout": ROLLOUTS,
        "rollout_max_response_len": 6,
        "lr": 1e-3,
        "save": folder,
        "load": folder,
        "save_interval": mode.save_interval,
        "exit_save_timeout": 60,
    }
    words = [text for name, value in values.items() for text in ("--" + name.replace("_", "-"), str(value))]
    words += ["--no-use-tensorboard", *mode.flags]
    words += [] if "--colocate" in mode.flags else ["--fully-async"]
    if not ray:
        return [*words, "--inline", "--bus", "local"]
    return words + (["--serve-port", "0"] if http else ["--no-serve-http"])


class Attempt(Protocol):
    """A run under way."""

    folder: Path

    def poll(self) -> int | None:
        """The exit code, negative for a signal, None while it lives."""
        ...

    def kill(self) -> None: ...

    def close(self) -> None:
        """Nothing of it lives any more."""
        ...


@dataclass
class Forked:
    """A run with all roles in one process, forked from this one."""

    folder: Path
    process: Any

    @classmethod
    def start(cls, words: Sequence[str], folder: Path, plan: Mapping[str, Any] | None, forget: bool) -> Forked:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_child, args=(list(words), folder, plan, forget))
        process.start()
        return cls(folder, process)

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _child(words: list[str], folder: Path, plan: Mapping[str, Any] | None, forget: bool) -> None:
    os.setsid()
    with open(f"{folder}.log", "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    if forget:
        os.environ[FORGET_VARIABLE] = "1"
    if plan is not None:
        faults.plant(faults.FaultPlan.parse(json.dumps(plan)))
    from relax.entrypoints.train import main

    code = main(words)
    sys.stdout.flush()
    os._exit(code)


@dataclass
class Clustered:
    """The command as a user types it: roles are processes of a private Ray cluster."""

    folder: Path
    process: subprocess.Popen[bytes]
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    @classmethod
    def start(cls, words: Sequence[str], folder: Path, plan: Mapping[str, Any] | None) -> Clustered:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "", "PYTHONPATH": path}
        env |= {faults.VARIABLE: json.dumps(plan)} if plan is not None else {}
        with open(f"{folder}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "relax.entrypoints.train", *words],
                cwd=ROOT,
                env=env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return cls(folder, process)

    def poll(self) -> int | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.seen.setdefault(child.pid, child)
        return self.process.poll()

    def kill(self) -> None:
        self.process.kill()

    def kill_one(self, victim: str) -> bool:
        """Kill the process of a role, an engine, the bus or the coordinator; False when it is not there (yet)."""
        self.poll()
        log = str(self.folder.resolve() / "logs" / f"{victim}-0.log")
        for child in self.seen.values():
            with contextlib.suppress(psutil.Error, OSError):
                title = " ".join(child.cmdline())
                if os.readlink(f"/proc/{child.pid}/fd/1") == log or title.startswith(TITLES.get(victim, "none")):
                    child.kill()
                    return True
        return False

    def alive(self) -> list[str]:
        lines = []
        for child in self.seen.values():
            with contextlib.suppress(psutil.Error):
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    lines.append(f"{child.pid} {' '.join(child.cmdline())[:100]}")
        return lines

    def orphans(self, within_s: float) -> list[str]:
        """Processes of the run that still live after that time."""
        end = time.monotonic() + within_s
        while self.alive() and time.monotonic() < end:
            time.sleep(0.1)
        return self.alive()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for child in self.seen.values():
            with contextlib.suppress(psutil.Error):
                child.kill()


def steps_so_far(folder: Path) -> int:
    """`stepped` lines in the driver's journal, of all attempts."""
    path = folder / "journal" / "driver.jsonl"
    return path.read_text(errors="replace").count('"kind":"stepped"') if path.exists() else 0


@dataclass
class Followed:
    """How an attempt went."""

    code: int | None  # None: hung, and killed for that
    recovered_s: float | None  # from its start to its first trained rollout
    killed: bool  # by `strike`


def follow(attempt: Attempt, strike: Callable[[float, int], bool] | None, *, timeout_s: float = HUNG_S) -> Followed:
    """Watch an attempt to its end. `strike(seconds, rollouts trained)` is asked until it says that it has killed."""
    start, before = time.monotonic(), steps_so_far(attempt.folder)
    recovered, killed, end = None, False, start + timeout_s
    while (code := attempt.poll()) is None:
        now, steps = time.monotonic(), steps_so_far(attempt.folder) - before
        if recovered is None and steps:
            recovered = now - start
        if strike is not None and not killed and strike(now - start, steps):
            killed, end = True, now + timeout_s
        if now > end:
            attempt.kill()
            return Followed(None, recovered, killed)
        time.sleep(0.02)
    return Followed(code, recovered, killed)
