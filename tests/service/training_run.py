# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whole training runs of the tiny text model, in this process (`inline`) or as the command a user types (`start`)."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.builders import build_tiny_model_folder, write_jsonl

ROOT = Path(__file__).parents[2]
HOOKS = "tests.service.hooks."
ASYNC = ("--fully-async", "--use-rollout-logprobs", "--max-staleness")
FIVE_ROLES = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1],"actor_fwd":[1,1],"advantages":[1,0]}'


@dataclass(frozen=True)
class Inputs:
    """Model and prompts that every run shares."""

    model: Path
    prompts: Path

    def flags(self, save: Path, **changed: object) -> list[str]:
        """The command line of a short run; `changed` overrides a flag, None takes it away."""
        values: dict[str, object] = {
            "hf_checkpoint": self.model,
            "prompt_data": self.prompts,
            "label_key": "label",
            "custom_rm_path": HOOKS + "token_reward",
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 2,
            "num_rollout": 2,
            "rollout_max_response_len": 6,
            "lr": 1e-3,
            "save": save,
            **changed,
        }
        words = ["--no-use-tensorboard"]
        for name, value in values.items():
            if value is not None:
                words += ["--" + name.replace("_", "-"), str(value)]
        return words


def build_inputs(folder: Path) -> Inputs:
    rows = [{"input": f"What is {a} plus {b}?", "label": str(a + b)} for a in range(4) for b in range(3)]
    return Inputs(build_tiny_model_folder(folder / "model"), write_jsonl(folder / "prompts.jsonl", rows))


@dataclass
class Finished:
    """What a run left behind."""

    folder: Path
    code: int
    out: str
    err: str

    def ok(self) -> Finished:
        assert self.code == 0, f"exit code {self.code}\n{self.out[-3000:]}\n{self.err[-3000:]}\n{self.log()[-6000:]}"
        return self

    def log(self, name: str = "controller") -> str:
        path = self.folder / "logs" / f"{name}-0.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self, kind: str | None = None, writer: str = "driver") -> list[dict[str, Any]]:
        """The journal, one run after the other."""
        lines = [json.loads(line) for line in (self.folder / "journal" / f"{writer}.jsonl").read_text().splitlines()]
        return [line for line in lines if "kind" in line and kind in (None, line["kind"])]

    @property
    def reason(self) -> str:
        return self.events("ended")[-1]["reason"]

    def metrics(self, name: str) -> list[float]:
        """A metric over the steps that have it."""
        lines = (self.folder / "metrics" / "metrics.jsonl").read_text().splitlines()
        return [row[name] for row in map(json.loads, lines) if name in row]

    def samples(self, rollout_id: int, kind: str = "train") -> list[dict[str, Any]]:
        path = self.folder / "rollout_result" / kind / f"{rollout_id}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def ages(self) -> list[int]:
        """Rollout id minus oldest weight version, over all trained groups."""
        oldest = {event["group"]: event["oldest"] for event in self.events("accepted")}
        bound: dict[int, dict[int, None]] = {}  # a rollout may be bound in parts
        for event in self.events("bound"):
            bound.setdefault(event["rollout_id"], {}).update(dict.fromkeys(event["groups"]))
        return [event["rollout_id"] - oldest[g] for event in self.events("taken") for g in bound[event["rollout_id"]]]


def inline(flags: Sequence[object]) -> Finished:
    """Run in this process on the in-memory bus."""
    from relax.entrypoints.train import main

    words = ["--inline", "--bus", "local", *map(str, flags)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return Finished(Path(words[words.index("--save") + 1]), code, out.getvalue(), err.getvalue())


@dataclass
class Running:
    """A training command as processes of their own. `close` leaves none of them."""

    folder: Path
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    ray_folders: set[str] = field(default_factory=set)

    def wait_for(self, what: Callable[[], Any], *, timeout_s: float = 240.0, every_s: float = 0.1) -> Any:
        """Wait until `what()` is true while the run lives; notes every process of the run meanwhile."""
        end = time.monotonic() + timeout_s
        while True:
            self.processes()
            if found := what():
                return found
            assert self.process.poll() is None, f"the run ended: {self.finish().err[-3000:]}"
            assert time.monotonic() < end, f"not within {timeout_s:g} s: {self.text('stderr')[-3000:]}"
            time.sleep(every_s)

    def wait_for_text(self, text: str, *, log: str = "stdout", timeout_s: float = 240.0) -> str:
        return self.wait_for(lambda: text in (found := self.text(log)) and found, timeout_s=timeout_s)

    def wait_for_event(self, kind: str, count: int = 1, *, timeout_s: float = 240.0) -> None:
        path = self.folder / "journal" / "driver.jsonl"

        def there() -> bool:
            return path.exists() and path.read_text().count(f'"kind":"{kind}"') >= count

        self.wait_for(there, timeout_s=timeout_s)

    def text(self, log: str) -> str:
        path = self.folder.parent / f"{self.folder.name}.{log}"
        if log not in ("stdout", "stderr"):
            path = self.folder / "logs" / f"{log}-0.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @functools.cached_property
    def http(self) -> str:
        self.wait_for_text("http: ")
        return next(line[6:] for line in self.text("stdout").splitlines() if line.startswith("http: "))

    def processes(self) -> dict[int, psutil.Process]:
        """Every process of the run that was ever seen, by pid."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if child.pid not in self.seen:
                    self.ray_folders.update(re.findall(r"/tmp/rlx-\w+", " ".join(child.cmdline())))
                    self.seen[child.pid] = child
        return self.seen

    def alive(self) -> list[str]:
        """Processes of the run that still live; zombies that nobody has waited for are dead."""
        lines = []
        for child in self.seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    lines.append(f"{child.pid} {' '.join(child.cmdline())[:150]}")
        return lines

    def pid_of(self, worker: str) -> int:
        """The process of a Ray worker, by its log file, or `engine-0-process` for an engine."""
        log = str(self.folder / "logs" / f"{worker}-0.log")
        for child in self.processes().values():
            with contextlib.suppress(psutil.Error, OSError):
                if os.readlink(f"/proc/{child.pid}/fd/1") == log:
                    return child.pid
        raise AssertionError(f"no process writes {log}")

    def priorities(self) -> set[int]:
        """Nice values of the run's processes that live."""
        found = set()
        for child in self.processes().values():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(child.nice())
        return found

    def temporary(self) -> list[Path]:
        """Folders outside the run folder that this run has made and not removed."""
        run_id = json.loads((self.folder / "manifest.json").read_text())["run_id"]
        folders = [Path(f"/dev/shm/relax-{run_id}"), *map(Path, sorted(self.ray_folders))]
        return [folder for folder in folders if folder.exists()]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def finish(self, timeout_s: float = 240.0) -> Finished:
        """Wait for the end."""
        end = time.monotonic() + timeout_s
        while self.process.poll() is None:
            self.processes()
            assert time.monotonic() < end, f"still running: {self.text('stderr')[-2000:]}\n{self.alive()}"
            time.sleep(0.05)
        code = self.process.returncode
        return Finished(self.folder, code, self.text("stdout"), self.text("stderr"))

    def wait_gone(self, timeout_s: float = 20.0) -> list[str]:
        """What is left of the run's processes `timeout_s` after now."""
        end = time.monotonic() + timeout_s
        while self.alive() and time.monotonic() < end:
            time.sleep(0.1)
        return self.alive()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for child in self.seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@contextlib.contextmanager
def start(flags: Sequence[object], *, env: dict[str, str] | None = None) -> Iterator[Running]:
    """Start the training command; it is gone when the block ends."""
    words = [str(word) for word in flags]
    folder = Path(words[words.index("--save") + 1])
    if "--inline" not in words and "--serve-port" not in words:
        words += ["--serve-port", "0"]
    command = [sys.executable, "-m", "relax.entrypoints.train", *words]
    with (
        open(f"{folder}.stdout", "wb") as out,
        open(f"{folder}.stderr", "wb") as err,
    ):
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "", **(env or {})},
        )
    running = Running(folder, process)
    try:
        yield running
    finally:
        running.close()


def command(flags: Sequence[object], *, env: dict[str, str] | None = None, timeout_s: float = 240.0) -> Finished:
    """The training command from start to end."""
    with start(flags, env=env) as running:
        return running.finish(timeout_s)


def interrupt_group(running: Running) -> None:
    """What Ctrl-C in a terminal does: SIGINT to every process of the foreground group."""
    os.killpg(running.process.pid, signal.SIGINT)


def checkpoint_weights(folder: Path) -> dict[str, Any]:
    """The weights of a checkpoint's model folder, by name."""
    import torch
    import torch.distributed.checkpoint as dcp

    meta = json.loads((folder / "relax.json").read_text())
    state = {f"model.{name}": torch.zeros(shape) for name, shape in meta["shapes"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on single-process use
        dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    return state
