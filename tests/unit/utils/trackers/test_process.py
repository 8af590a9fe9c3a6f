# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A tracker may wait for its server as long as it likes: rows are lost, counted and told, and nothing of ours waits.

The libraries are small stand-ins on the path of the tracker's process; `test_libraries` has the real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax.utils.metric_sinks import BackgroundSink
from relax.utils.trackers.process import TrackerProcess
from relax.utils.trackers.worker import title_and_series

WANDB = """
import json, os, time

class errors:
    class Error(Exception): pass

class Settings:
    def __init__(self, **given): self.given = given

def init(mode, **given):
    print("calls init", mode, given["id"], flush=True)
    {init}
    return Run(given["id"] or "fresh")

class Run:
    def __init__(self, id): self.id = id; self.rows = open(os.environ["ROWS"], "a")
    def define_metric(self, name, step_metric): pass
    def log(self, row):
        {log}
        print(json.dumps(row), file=self.rows, flush=True)
    def finish(self):
        {finish}
"""
HANG = "time.sleep(600)"


@pytest.fixture
def tracker(tmp_path: Path) -> Callable[..., TrackerProcess]:
    """Makes the process of a wandb whose calls do what they are told to."""

    def make(*, init: str = "pass", log: str = "pass", finish: str = "pass", limit_s: float = 30.0) -> TrackerProcess:
        for name, code in {"init": init, "log": log, "finish": finish}.items():
            calls[name] = code
        source = WANDB
        for name, code in calls.items():
            source = source.replace(f"{{{name}}}", code)
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / "wandb.py").write_text(source)
        path = os.pathsep.join([str(tmp_path / "lib"), str(Path(__file__).parents[4])])
        return TrackerProcess(
            "wandb",
            {
                "folder": str(tmp_path / "run"),
                "id_file": str(tmp_path / "run" / "id"),
                "run_id": None,
                "run_pid": os.getpid(),
                "mode": "online",
                "config": {"lr": 1e-6},
                "project": "p",
            },
            log=tmp_path / "wandb.log",
            environment={"PYTHONPATH": path, "ROWS": str(tmp_path / "rows")},
            limit_s=limit_s,
        )

    calls: dict[str, str] = {}
    return make


def in_background(process: TrackerProcess, **options: Any) -> BackgroundSink:
    return BackgroundSink(process, name="wandb", start=process.start, abandon=process.abandon, **options)


def rows(tmp_path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]


def test_rows_arrive_with_the_step_that_their_charts_are_drawn_over(tracker, tmp_path: Path) -> None:
    sink = in_background(tracker())
    sink.write(0, {"train/loss": 0.5})
    sink.write(1, {"eval/digits/reward/mean": float("nan")})
    sink.close()
    training, evaluation = rows(tmp_path)
    assert training == {"train/loss": 0.5, "rollout/step": 0}
    assert evaluation["eval/digits/reward/mean"] != evaluation["eval/digits/reward/mean"]  # NaN stays NaN
    assert (evaluation["eval/step"], sink.error, sink.dropped) == (1, None, 0)


def test_a_resumed_run_goes_on_under_the_id_that_its_folder_keeps(tracker, tmp_path: Path) -> None:
    for _ in range(2):
        process = tracker()
        process.start()
        process.close()
        (tmp_path / "run" / "id").write_text("kept\n") if "kept" not in (tmp_path / "wandb.log").read_text() else None
    assert (tmp_path / "wandb.log").read_text().splitlines() == ["calls init online None", "calls init online kept"]


@pytest.mark.parametrize("where", ["init", "log"])
def test_a_server_that_never_answers_costs_rows_and_no_time(where: str, tracker, caplog) -> None:
    process = tracker(**{where: HANG})
    sink = in_background(process, capacity=4, close_timeout_s=0.5)
    filler = {f"train/custom/{number}": float(number) for number in range(4000)}  # 100 kB: the pipe holds 64
    began = time.monotonic()
    for step in range(20):
        sink.write(step, filler)
    assert time.monotonic() - began < 5.0
    assert sink.dropped >= 14  # of 20, the queue holds four, and the thread and the pipe one or two
    sink.close()
    assert time.monotonic() - began < 10.0
    assert f"metrics rows that were lost sink=wandb rows={sink.dropped}" in caplog.text
    assert process._process.poll() == -signal.SIGKILL  # nothing stays


def test_a_library_that_waits_at_its_end_is_ended(tracker, caplog) -> None:
    process = tracker(finish=HANG)
    sink = in_background(process, close_timeout_s=3.0)
    sink.write(0, {})
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 10.0
    assert "metrics sink still busy at exit, what it has not sent is lost sink=wandb" in caplog.text
    assert process._process.poll() == -signal.SIGKILL


def test_the_process_ends_itself_when_nobody_is_left_to_end_it(tracker) -> None:
    process = tracker(finish=HANG, limit_s=0.2)
    process.start()
    with pytest.raises(Exception, match=r"exit code 3: gave up: the last rows were not sent within 0\.2 s"):
        process.close()


def test_it_ends_when_the_run_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from relax.utils.trackers.process import TrackerProcess\n"
        "process = TrackerProcess('wandb', {}, log=Path(sys.argv[1]), limit_s=0.2)\n"
        "print(process._process.pid, flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert run.stdout is not None
    tracker = int(run.stdout.readline())
    run.kill()
    run.communicate()
    for _ in range(2400):  # far more than the start of Python takes on a busy machine
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(tracker).status() != psutil.STATUS_ZOMBIE:  # its new parent may be slow to collect it
                time.sleep(0.05)
                continue
        return
    os.kill(tracker, signal.SIGKILL)
    pytest.fail("the tracker outlived its run by 120 s")


def test_a_refused_login_keeps_the_rows_and_says_so(tracker, tmp_path: Path, capfd) -> None:
    refused = "\n    if mode == 'online': raise errors.Error('no such key')"
    sink = in_background(tracker(init=refused))
    sink.write(0, {"train/loss": 0.5})
    sink.close()
    assert rows(tmp_path) == [{"train/loss": 0.5, "rollout/step": 0}]
    assert "note: Weights & Biases: no such key; its rows stay in" in capfd.readouterr().err


def test_a_library_that_fails_is_given_up_with_its_last_words(tracker, tmp_path: Path, caplog) -> None:
    process = tracker(log="raise ValueError('bad row')")
    sink = in_background(process)
    sink.write(0, {})
    process._process.wait(30)
    sink.write(1, {})
    sink.close()
    assert sink.error is not None
    assert f"wandb ended with exit code 1: ValueError: bad row ({tmp_path / 'wandb.log'})" in caplog.text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rollout/reward/mean", ("rollout/reward", "mean")),
        ("train/loss", ("train/loss", "loss")),
        ("loss", ("loss", "loss")),
    ],
)
def test_a_plot_holds_curves_that_belong_together(name: str, expected: tuple[str, str]) -> None:
    assert title_and_series(name) == expected
