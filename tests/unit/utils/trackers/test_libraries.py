# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The real libraries without a network, where they are installed: `pip install -e '.[wandb,clearml]'`."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from pathlib import Path

import pytest

from relax.utils.metric_sinks import BackgroundSink
from relax.utils.trackers.process import TrackerProcess

CONFIG = {"lr": 1e-6, "custom_rm_path": None}


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"the extra {package} is not installed"
    )


def log_two_steps(process: TrackerProcess) -> BackgroundSink:
    sink = BackgroundSink(
        process, name=process.kind, start=process.start, abandon=process.abandon, close_timeout_s=60.0
    )
    for step in range(2):
        sink.write(step, {"rollout/reward/mean": 0.25 + step, "train/loss": 0.5})
    sink.close()
    return sink


@needs("wandb")
def test_weights_and_biases_keeps_rows_offline(tmp_path: Path) -> None:
    settings = {
        "folder": str(tmp_path), "id_file": str(tmp_path / "id"), "run_id": None, "run_pid": os.getpid(),
        "mode": "offline", "config": CONFIG, "project": "relax", "name": "first",
    }  # fmt: skip
    process = TrackerProcess("wandb", settings, log=tmp_path / "log")
    sink = log_two_steps(process)
    assert (sink.error, sink.dropped, process._process.returncode) == (None, 0, 0)
    name = (tmp_path / "id").read_text().strip()
    (file,) = tmp_path.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb")
    assert all(word in file.read_bytes() for word in (b"rollout/reward/mean", b"rollout/step", b"1.25", b"first"))


@needs("clearml")
@pytest.mark.slow
def test_clearml_keeps_a_task_offline(tmp_path: Path) -> None:
    settings = {
        "project": "relax", "name": "first", "id_file": str(tmp_path / "id"), "offline": True, "config": CONFIG,
    }  # fmt: skip
    environment = {"CLEARML_CACHE_DIR": str(tmp_path / "kept")}
    sink = log_two_steps(TrackerProcess("clearml", settings, log=tmp_path / "log", environment=environment))
    assert (sink.error, sink.dropped) == (None, 0)
    (archive,) = (tmp_path / "kept").rglob("offline-*.zip")
    with zipfile.ZipFile(archive) as file:
        text = file.read(next(name for name in file.namelist() if name.endswith("metrics.jsonl"))).decode()
    events = [event for line in text.splitlines() for event in json.loads(line)]
    scalars = {
        (e["metric"], e["variant"], e["iter"]): e["value"] for e in events if e["type"] == "training_stats_scalar"
    }
    assert scalars[("rollout/reward", "mean", 1)] == 1.25
    assert scalars[("train/loss", "loss", 0)] == 0.5
