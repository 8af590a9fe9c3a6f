# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Deterministic runs of the tiny text model in this process: native engine, trainer, filter, over-sampling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relax.utils import faults
from relax.utils.faults import FaultPlan, Rule
from tests.service.training_run import ASYNC, Finished, Inputs, build_inputs, inline

SLEEPS = (
    Rule("reward", sleep_s=0.2),
    Rule("decode_step", sleep_s=0.02, chance=0.5),
    Rule("put", sleep_s=0.2),
    Rule("publish", sleep_s=0.2),
    Rule("admit", sleep_s=0.2),
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return build_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = faults.plant(None)
    yield
    faults.plant(before)


def run(inputs: Inputs, folder: Path, seed: int | None) -> Finished:
    faults.plant(None if seed is None else FaultPlan(SLEEPS, seed, process="inline"))
    flags = inputs.flags(
        folder,
        num_rollout=4,
        rollout_batch_size=3,
        over_sampling_batch_size=5,
        save_interval=2,
        dynamic_sampling_filter_path="relax.engine.filters.dynamic.check_reward_nonzero_std",
    )
    return inline([*flags, *ASYNC, "1", "--deterministic"]).ok()


def decisions(done: Finished) -> list[dict]:
    unequal = ("run_id", "path")  # names of the run itself
    return [{k: v for k, v in e.items() if k not in unequal} for e in done.events() if e["kind"] != "timing"]


def blocks(done: Finished) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (done.folder / "trace").glob("*.safetensors")}


def test_the_same_seed_gives_the_same_run_whatever_sleeps_in_between_U2(inputs: Inputs, tmp_path: Path):
    quiet, noisy = run(inputs, tmp_path / "quiet", None), run(inputs, tmp_path / "noisy", 1)
    assert decisions(noisy) == decisions(quiet)  # checksums of every version's weights and of every gradient included
    assert {event["kind"] for event in quiet.events()} >= {"weights", "dropped", "bound", "checkpoint"}
    assert blocks(noisy) == blocks(quiet)


def test_a_deterministic_run_that_is_not_exact_ends_before_its_first_token(inputs: Inputs, tmp_path: Path):
    done = inline([*inputs.flags(tmp_path / "run", rollout_dtype="bf16"), *ASYNC, "1", "--deterministic"])
    assert done.code == 2
    assert "--deterministic: tokens would depend on which requests share a batch" in done.err
    assert "engines compute in bf16 and the trainer in fp32" in done.err
    assert not done.events("admitted")
