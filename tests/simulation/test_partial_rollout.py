# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Seeded schedules of whole runs with partial rollout: nothing is too old, nothing is lost, no budget restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulation import world as simulated
from benchmarks.simulation.checker import check, trace_blocks
from benchmarks.simulation.plan import Plan, plan_of
from benchmarks.simulation.world import World
from relax.schedule.clock import run_virtual
from tests.builders import tiny_tokenizer

BUDGET = 6  # sampled tokens of a sample, as the simulated world asks for


@pytest.fixture(autouse=True)
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A continued response is decoded as a whole."""
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setattr(simulated.ARGS, "hf_checkpoint", str(tmp_path / "tokenizer"))


def partial_plan(seed: int) -> Plan:
    plan = plan_of(seed)
    if seed % 3:  # the default generate function, which alone can go on in the middle
        plan = replace(plan, user_failures=0.0, fan_out=False)
    return replace(
        plan,
        rollouts=6,
        partial_rollout=True,
        protected_after=(None, 1, 2)[seed // 2 % 3],
        mask_off_policy=seed % 2 == 0,
        slow_requests=0.3,  # responses that live through updates
    )


def test_no_schedule_breaks_a_promise(tmp_path: Path):
    continued = masked = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = run_virtual(World(partial_plan(seed), folder).run())
        check(world)
        for _, columns in trace_blocks(world).values():
            ends = columns["response_len"].cumsum().tolist()
            assert max(columns["response_len"].tolist()) <= BUDGET
            for length, end in zip(columns["response_len"].tolist(), ends, strict=True):
                versions = columns["weight_version"][end - length : end]
                mask = columns["loss_mask"][end - length : end]
                continued += len(set(versions.tolist())) > 1
                masked += int((mask == 0).sum())
                assert (mask[versions == versions.max()] == 1).all()
    assert continued > 0
    assert masked > 0
