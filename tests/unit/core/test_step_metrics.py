# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Numbers of one step: sums over sums, never means of means."""

from __future__ import annotations

import asyncio

import pytest

from relax.components.messages import (
    AdvantageReport,
    EvalReport,
    ReleasedGroup,
    ReleaseReport,
    RolloutReport,
    TrainReport,
)
from relax.core.step_metrics import StepMetrics
from relax.schedule.scheduler import GateSettings, Scheduler
from relax.utils.metrics import MemorySink


class Hands:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def release(**metrics) -> ReleaseReport:
    groups = (ReleasedGroup(1, (4, 4), "d", False), ReleasedGroup(2, (4, 4), "e", False))
    return ReleaseReport(groups, metrics, {"rollout/response_tokens/max": 9.0})


def train_report(**metrics) -> TrainReport:
    return TrainReport(
        0,
        2,
        metrics,
        {"grad_norm": 0.5},
        {"data_wait": 0.25, "forward": 1.0, "backward": 2.0, "forward_backward": 3.0},
    )


def one_step(*, releases=None, advantages=None, report=None, dropped=(), between=lambda metrics, clock: None):
    clock, sink = Hands(), MemorySink()
    metrics = StepMetrics([sink], clock)
    metrics.start_step(0.5)
    between(metrics, clock)
    metrics.trained(releases or release(), advantages or AdvantageReport((4.0,), {}), report or train_report())
    clock.time += 8.0
    metrics.finish_step(0, Scheduler(GateSettings(2, 1, 5)))
    ((step, values),) = sink.rows
    assert step == 0
    return values, metrics


def test_a_mean_over_ranks_of_different_size_weighs_every_value_once():  # L13
    # rank 0 saw [1, 1, 1], rank 1 saw [5]: (3 + 5) / (3 + 1) = 2, not (1 + 5) / 2 = 3
    values, _ = one_step(report=train_report(entropy=(3.0 + 5.0, 3.0 + 1.0)))
    assert values["train/entropy"] == 2.0


def test_objective_terms_are_divided_by_what_the_gradient_was_divided_by():
    # two optimizer steps with divisors 4 and 6; the loss's own count (tokens) is not the denominator
    values, _ = one_step(
        advantages=AdvantageReport((4.0, 6.0), {"rollout/advantage_abs/mean": (3.0, 4.0)}),
        report=train_report(policy_loss=(5.0, 123.0), approx_kl=(6.0, 12.0)),
    )
    assert values["train/policy_loss"] == 0.5
    assert values["train/approx_kl"] == 0.5
    assert values["rollout/advantage_abs/mean"] == 0.75


def test_effective_sample_fraction_is_kishs():
    # weights 1, 3: mean 2, mean square 5 -> 4/5
    values, _ = one_step(report=train_report(importance=(4.0, 2.0), importance_square=(10.0, 2.0)))
    assert values["train/effective_sample_fraction"] == pytest.approx(0.8)


def test_rates_and_waits_are_those_of_the_step():
    def sampled(metrics: StepMetrics, clock: Hands) -> None:
        clock.time += 2.0
        metrics.rollout_report(RolloutReport(sampled_tokens=700))
        metrics.rollout_report(RolloutReport(sampled_tokens=300, failures={"timeout": 2}))

    values, _ = one_step(between=sampled, report=train_report(ratio=(50.0, 50.0)))
    assert values["perf/step_s"] == 10.0
    assert values["perf/sampled_tokens_per_s"] == 100.0
    assert values["perf/trained_tokens_per_s"] == 5.0
    assert values["rollout/sampled_tokens"] == 1000.0
    assert values["rollout/failed_samples"] == 2.0
    assert (values["perf/wait_s/actor"], values["perf/wait_s/actor_data"]) == (0.5, 0.25)
    assert values["perf/forward_backward_s"] == 3.0
    assert values["rollout/trained_groups"] == 2.0


def test_drops_are_counted_when_they_are_decided_in_all_and_by_reason():
    def drop(metrics: StepMetrics, clock: Hands) -> None:
        metrics.rollout_report(RolloutReport(dropped=((1, "filter"),)))  # not decided: counts nothing
        for reason in ("filter", "filter", "surplus"):
            metrics.dropped(reason)

    values, _ = one_step(between=drop)
    assert values["rollout/dropped_groups"] == 3.0
    assert values["rollout/dropped_groups/filter"] == 2.0
    assert values["rollout/dropped_groups/surplus"] == 1.0


def test_what_was_not_measured_is_absent():
    """U8."""
    values, _ = one_step()
    assert not {"train/entropy", "perf/weight_sync_s", "perf/checkpoint_s", "rollout/dropped_groups"} & set(values)


def test_optimizer_steps_add_up_over_rollouts_and_a_resume():
    _, metrics = one_step()
    assert metrics.num_steps == 2
    metrics.num_steps = 40
    metrics.trained(release(), AdvantageReport((1.0,), {}), train_report())
    assert metrics.num_steps == 42


def test_an_evaluation_is_a_row_of_its_own_under_its_version():
    clock, sink, seen = Hands(), MemorySink(), []
    metrics = StepMetrics([sink], clock, on_eval=lambda version, values: seen.append(version))
    metrics.start_step(0.0)
    metrics.evaluated(EvalReport(3, {"eval/digits/reward/mean": 0.75}, 1.5))
    assert sink.rows == [(3, {"eval/digits/reward/mean": 0.75, "eval/weight_version": 3.0, "perf/eval_s": 1.5})]
    assert seen == [3]


def test_the_clock_of_a_step_needs_no_event_loop():
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert one_step()[0]["perf/step_s"] == 8.0


def test_rows_that_a_tracker_lost_are_a_metric_of_the_next_step():
    class Lossy(MemorySink):
        dropped = 3

    clock, sink = Hands(), Lossy()
    metrics = StepMetrics([sink, MemorySink()], clock)
    metrics.finish_step(0, Scheduler(GateSettings(2, 1, 5)))
    assert sink.series("perf/dropped_metrics") == [3.0]
