# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Import paths that users write into their own code and flags stay where they are."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "relax.utils.types.Sample",
    "relax.utils.http_utils.post",
    "relax.engine.rollout.sglang_rollout.GenerateState",
    "relax.engine.rollout.sglang_rollout.generate",
    "relax.engine.rollout.sglang_rollout.generate_rollout",
    "relax.engine.filters.dynamic.check_reward_nonzero_std",
    "relax.entrypoints.train.main",
    "relax.backends.base.TrainBackend",
    "relax.backends.base.EngineClient",
    "relax.distributed.bus.base.Bus",
    "relax.utils.errors.RelaxError",
    "examples.quickstart.reward.digit_reward",
)


@pytest.mark.parametrize("path", PUBLIC)
def test_a_documented_path_leads_to_an_object(path):
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name).__doc__


def test_post_is_awaitable_and_takes_url_and_payload():
    from relax.utils.http_utils import post

    assert inspect.iscoroutinefunction(post)
    assert list(inspect.signature(post).parameters)[:2] == ["url", "payload"]


@pytest.mark.parametrize("command", [["-m", "relax.entrypoints.train"], ["relax/entrypoints/train.py"], ["train.py"]])
def test_help_needs_neither_torch_nor_ray(command):
    # -X importtime lists every imported module on standard error
    out = subprocess.run(
        [sys.executable, "-X", "importtime", *command, "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr[-2000:]
    assert "--rollout-batch-size" in out.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in out.stderr.splitlines() if line.startswith("import time:")}
    assert "relax.config.flags" in imported
    assert not imported & {"torch", "ray", "transformers"}
