# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The main job as a user starts it: real processes, real files, one result line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from relax.utils.jsonl import read_jsonl

ROOT = Path(__file__).parents[2]


def run_demo(run_dir, *words, timeout_s):
    command = [sys.executable, "-m", "examples.quickstart.demo", "--run-dir", str(run_dir), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    last = done.stdout.splitlines()[-1]
    assert last.startswith("RESULT ")
    return json.loads(last.removeprefix("RESULT "))


@pytest.mark.service
@pytest.mark.parametrize("mode", ["fully_async", "colocate"])
def test_a_short_demo_leaves_a_whole_run_folder(mode, tmp_path):
    words = ["--colocate"] if mode == "colocate" else []
    # 40 steps of cold start are the fewest that give answers which are sometimes right
    result = run_demo(tmp_path, "--steps", "2", "--sft-steps", "40", *words, timeout_s=900)
    assert (result["mode"], result["modality"], result["steps"]) == (mode, "image", 2)
    assert result["cpu_s"] > result["cpu_s_to_first_rl_step"] > 0
    rows = list(read_jsonl(tmp_path / "heldout.jsonl"))
    assert len(rows) == 397
    right = sum(row["after"] == row["gold"] for row in rows)
    assert result["heldout_after"] == pytest.approx(right / 397, abs=1e-6)
    assert (tmp_path / "reward.png").stat().st_size > 5000
    assert list((tmp_path / "tensorboard").rglob("events.out.tfevents.*"))
    for name in ("hf_before", "hf_after"):
        assert (tmp_path / name / "processor_config.json").exists(), name
    assert result["reward_first10"] > 0
    # some answers were right and some were not, so two optimizer steps have moved the weights
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("hf_before", "hf_after"))
    assert before.keys() == after.keys()
    assert not np.array_equal(before["lm_head.weight"], after["lm_head.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--colocate"]], ids=["fully_async", "colocate"])
def test_the_demo_learns(words, tmp_path):
    # three seeds of a plain loop went 0.42 -> 0.78 in reward and 0.5 - 0.65 -> 0.93 held out
    result = run_demo(tmp_path, *words, timeout_s=1800)
    assert result["reward_last10"] >= result["reward_first10"] + 0.12
    assert result["heldout_after"] >= 0.85
    assert result["heldout_after"] >= result["heldout_before"] + 0.2
