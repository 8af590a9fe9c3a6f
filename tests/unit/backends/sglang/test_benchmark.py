# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`make test-sglang` says that a run fell short when it did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sglang_cpu import LIMIT, PROMPTS, ROOT, SAMPLES, ended, summary

STEPS = 2


def write_run(
    folder: Path, *, difference: float = 1e-6, steps: int = STEPS, versions: int = 2, copies: int = 0
) -> Path:
    """A run folder of that many steps; the first `copies` groups have one answer for all of their samples."""
    metrics, results = folder / "metrics" / "metrics.jsonl", folder / "rollout_result" / "train"
    metrics.parent.mkdir(parents=True)
    results.mkdir(parents=True)
    metrics.write_text("".join(f'{{"train/engine_log_prob_diff/max": {difference}}}\n' for _ in range(steps)))
    for step in range(steps):
        rows = []
        for group in range(step * PROMPTS, (step + 1) * PROMPTS):
            version = min(step, versions - 1)
            for index in range(SAMPLES):
                response = "same" if group < copies else f"{group} {index // 2}"  # two and two alike are no copies
                row = {"group": group, "response": response, "response_tokens": 3}
                rows.append({**row, "first_version": version, "last_version": version})
        (results / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_whole_run_is_counted(tmp_path):
    assert summary(write_run(tmp_path / "run"), 0, STEPS) == {
        "ok": True,
        "exit_code": 0,
        "steps": 2,
        "max_engine_trainer_diff": 1e-6,
        "versions_sampled_under": [0, 1],
        "groups": 16,
        "groups_of_copies": 0,
        "response_tokens": 192,  # 16 groups of 4 samples of 3 tokens
    }


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"difference": 2 * LIMIT}, 0),
        ({"steps": 1}, 0),
        ({"versions": 1}, 0),
        ({"copies": 1}, 0),
        ({}, 1),
        ({}, None),
    ],
)
def test_a_run_that_falls_short_fails(tmp_path, fault, code):
    assert not summary(write_run(tmp_path / "run", **fault), code, STEPS)["ok"]


def test_a_run_that_left_nothing_fails(tmp_path):
    assert not summary(tmp_path / "nothing", 0, STEPS)["ok"]


def test_a_command_that_does_not_end_is_ended(capfd):
    assert ended([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3
    assert ended([sys.executable, "-c", "import time; time.sleep(600)"], 0.5) is None
    assert "did not end within 0.5 s" in capfd.readouterr().err


def test_without_sglangs_environment_it_says_how_to_get_one(tmp_path):
    command = [sys.executable, "-m", "benchmarks.sglang_cpu", "--python", str(tmp_path / "python")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "make test-sglang" in done.stderr
