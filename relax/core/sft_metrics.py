# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the roles' reports to the declared metrics of one step of supervised fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from relax.components.messages import TrainReport
from relax.components.sft_messages import Drawn
from relax.core.step_metrics import ON_THE_PATH, OnStep
from relax.schedule.clock import Clock
from relax.utils.metric_collector import EVAL, Collector
from relax.utils.metrics import Metrics, Sink


class SftMetrics:
    """One row a step, and one for each evaluation; what was not measured is absent."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        clock: Clock,
        *,
        objective: Sequence[str],
        train_rows: int,
        on_step: OnStep | None = None,
        on_eval: OnStep | None = None,
    ) -> None:
        self.collector = Collector(sinks)
        self._clock, self._on_step, self._on_eval = clock, on_step, on_eval
        self._objective, self._train_rows = tuple(objective), train_rows
        self._metrics = Metrics()
        self._ended = clock.now()
        self._tokens = 0.0
        self.num_steps = 0
        self.steps: list[dict[str, float]] = []

    def waited(self, seconds: float) -> None:
        """The trainer stood still, because the next step was not on the bus."""
        self._metrics.gauge("perf/wait_s/actor", seconds)

    def trained(self, drawn: Sequence[Drawn], report: TrainReport, divisor: float, reached: int) -> None:
        """`reached` is the position of the stream up to which rows have been drawn."""
        metrics = self._metrics
        units = [unit for share in drawn for unit in share.units]
        lengths = [length for unit in units for length in unit.lengths]
        for name, (total, count) in report.metrics.items():
            metrics.mean(f"train/{name}", total, divisor if name in self._objective else count)
        loss = math.fsum(report.metrics[name][0] for name in self._objective if name in report.metrics)
        metrics.mean("train/loss", loss, divisor)
        for name, value in report.gauges.items():
            metrics.gauge(f"train/{name}", value)
        self._tokens = float(sum(unit.tokens for unit in units))
        metrics.count("train/trained_tokens", self._tokens)
        metrics.count("sft/rows", len(units))
        metrics.count("sft/tokens", sum(lengths))
        metrics.mean("sft/sample_tokens/mean", float(sum(lengths)), len(lengths))
        metrics.maximum("sft/sample_tokens/max", max(lengths))
        metrics.gauge("sft/epoch", reached / self._train_rows)
        for reason, number in _joined([share.skipped for share in drawn]).items():
            metrics.count("sft/skipped_rows", number)
            metrics.count(f"sft/skipped_rows/{reason}", number)
        metrics.gauge("perf/wait_s/sft", max(share.wait_s for share in drawn))
        metrics.gauge("perf/render_s", math.fsum(share.rendered_s for share in drawn))
        for name, metric in SECONDS.items():
            if name in report.seconds:
                metrics.gauge(metric, report.seconds[name])
        self.num_steps += report.num_steps
        metrics.gauge("train/optimizer_steps", self.num_steps)

    def saved(self, seconds: float) -> None:
        self._metrics.gauge("perf/checkpoint_s", seconds)

    def predicted(self, seconds: float) -> None:
        """From the publish to the trainer's return to its cards."""
        self._metrics.gauge("perf/predict_s", seconds)

    def evaluated(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """An evaluation is a line of its own; `step` is the number of steps in the weights that it saw."""
        metrics = Metrics()
        for name, value in values.items():
            metrics.gauge(name, value)
        metrics.gauge("eval/weight_version", step)
        metrics.gauge("perf/eval_s", seconds)
        written = self.collector.write(step, metrics.take(), EVAL)
        if self._on_eval is not None:
            self._on_eval(step, written)

    def finish_step(self, step: int) -> None:
        now = self._clock.now()
        seconds, self._ended = now - self._ended, now
        metrics = self._metrics
        metrics.gauge("perf/step_s", seconds)
        metrics.gauge("perf/dropped_metrics", self.collector.dropped)
        if self.collector.has_reports:
            metrics.gauge("perf/missing_reports", self.collector.missing)
            metrics.gauge("perf/refused_reports", self.collector.refused)
        if seconds > 0:
            metrics.gauge("perf/trained_tokens_per_s", self._tokens / seconds)
        values = self.collector.write(step, metrics.take())
        self.steps.append({name: value for name, value in values.items() if name in ON_THE_PATH})
        if self._on_step is not None:
            self._on_step(step, values)

    def close(self) -> None:
        """Write what was reported and has no row yet; the sinks write what they hold."""
        self.collector.close()


SECONDS = {
    "forward_backward": "perf/forward_backward_s",
    "step": "perf/optimizer_s",
    "data_wait": "perf/wait_s/actor_data",
}


def _joined(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    joined: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            joined[name] = joined.get(name, 0) + number
    return joined
