# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Critic and teacher as Ray workers behind doors, in runs whose weights must be those of one process."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.builders import build_tiny_model_folder
from tests.service.test_ppo import ROLES, same
from tests.service.training_run import HOOKS, Inputs, command, inline, start

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


@pytest.mark.parametrize("kl_coef", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_ppo_with_its_critic_gives_the_weights_of_one_process(inputs: Inputs, tmp_path: Path, kl_coef: float):
    """With the KL in the reward the actor wakes, writes the reference's log-probs and sleeps before the critic."""
    changed = {
        "kl_coef": kl_coef,
        "advantage_estimator": "ppo",
        "critic_lr": 3e-3,
        "num_rollout": 2,
        "custom_rm_path": HOOKS + "text_reward",
    }
    one = inline([*inputs.flags(tmp_path / "one", resource=ROLES, **changed), "--colocate"]).ok()
    flags = inputs.flags(tmp_path / "ray", resource=ROLES, **changed)
    ray = command([*flags, "--colocate", "--no-lend-cores"]).ok()
    for role in ("model", "critic"):
        assert same(one.folder / "iter_0000001" / role, ray.folder / "iter_0000001" / role)
    assert ray.metrics("train/value_loss") == one.metrics("train/value_loss")


@pytest.mark.slow
def test_an_async_run_with_two_critic_ranks_and_an_engine_teacher_answers_at_every_door(
    inputs: Inputs, tmp_path: Path
):
    teacher = build_tiny_model_folder(tmp_path / "teacher", seed=7)
    roles = '{"actor":[1,1],"critic":[1,2],"rollout":[1,1],"teacher":[1,1]}'
    flags = inputs.flags(
        tmp_path / "run", advantage_estimator="ppo", resource=roles, num_rollout=1000, teacher_hf_checkpoint=teacher
    )
    words = ["--fully-async", "--use-rollout-logprobs", "--max-staleness", 1, "--use-opd"]
    with start([*flags, *words]) as running:
        running.wait_for_event("installed", 3)
        for role in ("critic", "teacher"):
            with urllib.request.urlopen(f"{running.http}/{role}/get_step", timeout=60) as reply:
                assert json.loads(reply.read())["step"] >= 2
        request = urllib.request.Request(f"{running.http}/critic/stop_service", b"", method="POST")
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.status == 200
        done = running.finish().ok()
        assert done.reason == "stopped_by_service"
        assert running.wait_gone() == []
    steps = len(done.metrics("train/policy_loss"))
    assert len(done.metrics("train/value_loss")) == len(done.metrics("train/opd_kl")) == steps >= 3
    assert (max(done.folder.glob("iter_*")) / "critic" / "relax.json").is_file()
