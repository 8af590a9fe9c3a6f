# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Kill harness (docs/proofs.md): a few fixed kills that share model, data and unkilled run; many more with --slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kills.__main__ import main
from benchmarks.kills.evidence import Count, count
from benchmarks.kills.lines import CLUSTER_KILLS, MODES, Harness, Kill
from benchmarks.kills.runs import GROUPS, ROLLOUTS, SAMPLES
from relax.core.checkpoint import iteration_folder

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(tmp_path_factory.mktemp("kills"), seed=1)


def assert_nothing_wrong(harness: Harness, runs: int) -> None:
    tally = harness.tally
    assert tally.wrong_ends == []
    assert (tally.lost, tally.doubled, tally.hung, tally.unequal) == (0, 0, 0, 0)
    assert tally.runs == runs


def test_R1_R7_a_run_killed_inside_a_save_and_inside_a_weight_update_ends_with_the_weights_of_the_whole(harness):
    before = harness.tally.runs
    harness.line(MODES["on_policy"], [Kill("save", 3), Kill("update_end", 3)])
    assert_nothing_wrong(harness, before + 2)


def test_R1_R2_R12_a_run_killed_with_open_groups_trains_every_prompt_once(harness):
    before = harness.tally.runs
    harness.line(MODES["async"], [Kill("checkpoint", 2), Kill("put", 3)])
    assert_nothing_wrong(harness, before + 2)


def test_a_training_worker_and_the_bus_of_a_run_on_ray_may_die(harness):
    before = harness.tally.runs
    harness.line(MODES["async"], [Kill("publish", 3, "actor-0"), Kill("random", 1, "bus")])
    assert_nothing_wrong(harness, before + 2)


def test_the_harness_sees_prompts_that_a_resume_forgets(harness):
    assert harness.control_lost(MODES["async"], Kill("put", 5)) > 0


def test_the_count_tells_lost_from_doubled(harness):
    harness.whole(MODES["on_policy"])
    checkpoint = iteration_folder(harness.work / "lines" / "whole-on_policy", ROLLOUTS - 1)
    first, *others = harness.wanted
    assert count(checkpoint, harness.wanted, SAMPLES) == Count(0, 0)
    # of 16 draws over 11 rows the first five come twice: one more of the first is lost, one less of another is doubled
    assert (GROUPS, harness.wanted[first], harness.wanted[others[0]]) == (16, 2, 2)
    changed = harness.wanted.copy()
    changed[first] += 1
    changed[others[0]] -= 1
    assert count(checkpoint, changed, SAMPLES) == Count(lost=1, doubled=1)


@pytest.mark.slow
def test_every_process_of_a_run_on_ray_may_die_at_any_moment(harness):
    before = harness.tally.runs
    for first in range(0, len(CLUSTER_KILLS), 2):
        harness.line(MODES["async"], CLUSTER_KILLS[first : first + 2])
    assert_nothing_wrong(harness, before + len(CLUSTER_KILLS))


@pytest.mark.slow
def test_fifty_random_kills(tmp_path: Path):
    assert main(["--runs", "50", "--cluster", "0", "--seed", "7", "--work", str(tmp_path)]) == 0
