# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A run that is killed where it hurts, and goes on, ends with the weights of one that was not killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from relax.components.trained import read_trained
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.test_sft_inline import MATH, flags, weights
from tests.service.training_run import inline, start

pytestmark = pytest.mark.service

DEATHS = (
    {"point": "put", "nth": 6, "kill": True},  # the sixth step is drawn and not on the bus
    {"point": "save", "nth": 2, "kill": True},  # the model's part of the second checkpoint of this start is written
    {"point": "checkpoint", "nth": 1, "kill": True},  # the state and the tracker are not
)


def test_killed_in_production_and_inside_checkpoints(tmp_path: Path) -> None:
    model = build_tiny_model_folder(tmp_path / "model")
    data = write_jsonl(tmp_path / "math.jsonl", MATH)
    common = {"num_epoch": 2, "save_interval": 2, "sft_max_in_flight_steps": 2, "eval_size": 4, "eval_interval": 4}
    whole = inline(flags(model, data, tmp_path / "whole", **common)).ok()
    words = [
        *flags(model, data, tmp_path / "killed", **common, load=tmp_path / "killed"),
        "--inline",
        "--bus",
        "local",
    ]
    for death in DEATHS:
        with start(words, env={"RELAX_FAULTS": json.dumps({"rules": [death]})}) as running:
            assert running.process.wait(240) == -signal.SIGKILL
    with start(words) as running:
        finished = running.finish().ok()
    old, new = weights(whole.folder, 9), weights(finished.folder, 9)
    assert all(np.array_equal(old[name], new[name]) for name in old)
    records = read_trained(finished.folder / "iter_0000009" / "model")
    assert sorted(records["group"].tolist()) == list(range(40))  # the trainer's own word: each row of both epochs once
    assert finished.metrics("train/loss") == whole.metrics("train/loss")


def test_a_signal_leaves_a_checkpoint_of_the_last_step(tmp_path: Path) -> None:
    model = build_tiny_model_folder(tmp_path / "model")
    data = write_jsonl(tmp_path / "math.jsonl", MATH)
    words = [*flags(model, data, tmp_path / "run", num_epoch=500), "--inline", "--bus", "local"]
    with start(words) as running:
        running.wait_for_event("stepped", 3)
        running.send(signal.SIGTERM)
        stopped = running.finish()
    assert stopped.code == 143 and stopped.reason == "stopped"
    saved = int((stopped.folder / "latest_checkpointed_iteration.txt").read_text())
    assert saved == stopped.events("stepped")[-1]["rollout_id"] >= 2
