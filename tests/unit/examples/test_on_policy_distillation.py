# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The distillation example: what its flags mean, and (slow) that its student ends near its teacher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("teacher", ["engine", "local"])
@pytest.mark.parametrize("form", ["ids", "sampled"])
def test_the_demos_flags_are_a_valid_configuration(form, teacher, tmp_path):
    from examples.on_policy_distillation.demo import parse, train_flags
    from relax.config.machine import Machine
    from relax.config.run import parse_args

    options = parse(["--form", form, "--teacher", teacher, "--steps", "7"])
    config = parse_args(train_flags(options, tmp_path), machine=Machine())
    opd = config.distillation
    assert opd.use_opd and opd.opd_only_reward
    assert opd.opd_type == {"engine": "sglang", "local": "megatron"}[teacher]
    assert bool(opd.opd_loss_coef) == (form == "ids") == (opd.opd_log_prob_top_k == 8)
    assert (config.rollout.num_rollout, config.steps_per_rollout) == (7, 4)


@pytest.mark.slow
def test_the_student_ends_near_its_teacher(tmp_path):
    command = [sys.executable, "-m", "examples.on_policy_distillation.demo", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    result = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    # seeds 0 and 1 went 0.16 -> 0.89 and 0.17 -> 0.89 with teachers of 0.94 and 0.92
    assert result["heldout_teacher"] > 0.8
    assert result["heldout_student_after"] > result["heldout_student_before"] + 0.4
    assert result["kl_last"] < 0.3 * result["kl_first"]
