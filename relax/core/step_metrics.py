# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the roles' reports to the declared metrics of one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relax.algorithms.reduce import GRADIENT_SQUARE, divisor_of, effective_sample_fraction, gradient_norms
from relax.algorithms.value_moments import explained_variance
from relax.components.messages import AdvantageReport, EvalReport, ReleaseReport, RolloutReport, TrainReport
from relax.core import critical_path
from relax.schedule.clock import Clock
from relax.schedule.scheduler import Scheduler
from relax.utils.metric_collector import EVAL, Collector
from relax.utils.metrics import Metrics, Sink

OnStep = Callable[[int, dict[str, float]], None]

# Of a step's metrics those that `critical_path` reads.
ON_THE_PATH = frozenset(
    {"perf/step_s", "perf/generate_s/mean", "perf/reward_s/mean", *(name for name, _ in critical_path.PARTS)}
)
# What a loss reports, and the objective terms: their value is the sum over the step divided by its divisor.
OBJECTIVE = ("loss", "policy_loss", "kl_loss", "entropy_loss", "mtp_loss", "opd_loss")
MOMENTS = ("value_residual", "return")  # of the critic's loss, each with its square


class StepMetrics:
    """From reports to the run's own row of a step, which goes to the collector; what was not measured is absent."""

    def __init__(
        self, sinks: Sequence[Sink], clock: Clock, on_step: OnStep | None = None, on_eval: OnStep | None = None
    ) -> None:
        self.collector = Collector(sinks)
        self._clock, self._on_step, self._on_eval = clock, on_step, on_eval
        self._metrics, self._evaluations = Metrics(), Metrics()
        self._ended = clock.now()
        self._sampled = 0
        self._trained_tokens = 0.0
        self._waited_s = 0.0
        self.num_steps = 0
        self.steps: list[dict[str, float]] = []  # what lies on each step's critical path

    def rollout_report(self, report: RolloutReport) -> None:
        self._sampled += report.sampled_tokens
        failed = sum(report.failures.values())
        if failed:
            self._metrics.count("rollout/failed_samples", failed)

    def dropped(self, reason: str) -> None:
        self._metrics.count("rollout/dropped_groups")
        self._metrics.count(f"rollout/dropped_groups/{reason}")

    def start_step(self, waited_s: float) -> None:
        """Training begins, after it waited for the rollout or its first part."""
        self._waited_s = 0.0
        self.waited(waited_s)

    def waited(self, seconds: float) -> None:
        """Training stood still, for a further part."""
        self._waited_s += seconds
        self._metrics.gauge("perf/wait_s/actor", self._waited_s)

    def trained(self, release: ReleaseReport, advantages: AdvantageReport, report: TrainReport) -> None:
        metrics = self._metrics
        for source in (release.metrics, advantages.metrics):
            for name, (total, count) in source.items():
                metrics.mean(name, total, count)
        for name, value in release.maxima.items():
            metrics.maximum(name, value)
        metrics.count("rollout/trained_groups", len(release.groups))
        divisor = sum(advantages.divisors)
        for name, (total, count) in report.metrics.items():
            if not name.startswith(GRADIENT_SQUARE):
                metrics.mean(f"train/{name}", total, divisor if name in OBJECTIVE else count)
        if report.steps:
            for name, norm in gradient_norms(report.steps[-1]["sums"], divisor_of(advantages.divisors[-1])).items():
                metrics.gauge(f"train/gradient_norm/{name}", norm)
        self._importance(report)
        for name, value in report.gauges.items():
            metrics.gauge(f"train/{name}", value)
        self._trained_tokens = report.metrics.get("ratio", (0.0, 0.0))[1]
        metrics.count("train/trained_tokens", self._trained_tokens)
        if "forward_backward" in report.seconds:
            metrics.gauge("perf/forward_backward_s", report.seconds["forward_backward"])
        scoring = [report.seconds[name] for name in ("reference", "old_log_probs", "parity") if name in report.seconds]
        if scoring:
            metrics.gauge("perf/score_s", sum(scoring))
        if "step" in report.seconds:
            metrics.gauge("perf/optimizer_s", report.seconds["step"])
        if "data_wait" in report.seconds:
            metrics.gauge("perf/wait_s/actor_data", report.seconds["data_wait"])
        difference = report.engine_difference
        if difference is not None and difference.count:
            metrics.mean("train/engine_log_prob_diff/mean", difference.mean * difference.count, difference.count)
            metrics.gauge("train/engine_log_prob_diff/p99", difference.p99)
            metrics.maximum("train/engine_log_prob_diff/max", difference.max)
        self.num_steps += report.num_steps
        metrics.gauge("train/optimizer_steps", self.num_steps)

    def critic_trained(self, advantages: AdvantageReport, report: TrainReport) -> None:
        metrics, sums = self._metrics, report.metrics
        if "value_loss" in sums:
            metrics.mean("train/value_loss", sums["value_loss"][0], sum(advantages.divisors))
        for name in ("value_clip_fraction", "value", "return"):
            if name in sums:
                metrics.mean(f"train/{name}", *sums[name])
        if "return" in sums:
            moments = [(*(sums[n][0] for n in (name, f"{name}_square")), sums[name][1]) for name in MOMENTS]
            explained = explained_variance(*moments)
            if explained is not None:
                metrics.gauge("train/explained_variance", explained)
        for name, own in (("grad_norm", "train/critic_grad_norm"), ("lr", "train/critic_lr")):
            if name in report.gauges:
                metrics.gauge(own, report.gauges[name])
        seconds = [report.seconds[name] for name in ("forward_backward", "step") if name in report.seconds]
        if seconds:
            metrics.gauge("perf/critic_s", sum(seconds))

    def _importance(self, report: TrainReport) -> None:
        first, second = report.metrics.get("importance"), report.metrics.get("importance_square")
        if first and second and first[1] and second[1]:
            fraction = effective_sample_fraction(first[0] / first[1], second[0] / second[1])
            self._metrics.gauge("train/effective_sample_fraction", fraction)

    def synced(self, seconds: float, stall_s: float, num_bytes: int) -> None:
        self._metrics.gauge("perf/weight_sync_s", seconds)
        self._metrics.gauge("perf/weight_sync_bytes", num_bytes)
        self._metrics.gauge("perf/generation_stall_s", stall_s)

    def saved(self, seconds: float) -> None:
        self._metrics.gauge("perf/checkpoint_s", seconds)

    def evaluated(self, report: EvalReport) -> None:
        """An evaluation is a line of its own; its step is the number of rollouts in the weights that it saw."""
        metrics = self._evaluations
        for name, value in report.metrics.items():
            metrics.mean(name, value, 1.0)
        metrics.gauge("eval/weight_version", report.version)
        metrics.gauge("perf/eval_s", report.seconds)
        values = self.collector.write(report.version, metrics.take(), EVAL)
        if self._on_eval is not None:
            self._on_eval(report.version, values)

    def finish_step(self, rollout_id: int, scheduler: Scheduler) -> None:
        now = self._clock.now()
        seconds, self._ended = now - self._ended, now
        metrics = self._metrics
        metrics.gauge("perf/step_s", seconds)
        metrics.gauge("perf/open_groups", len(scheduler.open))
        metrics.gauge("perf/dropped_metrics", self.collector.dropped)
        if self.collector.has_reports:
            metrics.gauge("perf/missing_reports", self.collector.missing)
            metrics.gauge("perf/refused_reports", self.collector.refused)
        metrics.gauge("train/weight_version", scheduler.published)
        metrics.count("rollout/sampled_tokens", self._sampled)
        if seconds > 0:
            metrics.gauge("perf/sampled_tokens_per_s", self._sampled / seconds)
            metrics.gauge("perf/trained_tokens_per_s", self._trained_tokens / seconds)
        self._sampled = 0
        values = self.collector.write(rollout_id, metrics.take())
        self.steps.append({name: value for name, value in values.items() if name in ON_THE_PATH})
        if self._on_step is not None:
            self._on_step(rollout_id, values)

    def close(self) -> None:
        """Write what was reported and has no row yet; the sinks write what they hold."""
        self.collector.close()
