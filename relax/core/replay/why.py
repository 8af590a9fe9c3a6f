# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax why`: one number of a curve as a sum over samples, tokens or tensors, computed again by the run's own code.

What the trace alone decides (rewards, lengths, ages) needs no model; what the loss and the optimizer made is trained
again, see `capture`. Times and counts of events are measurements: nothing computes them again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from relax.algorithms.advantages import group_advantages
from relax.algorithms.reduce import divisor_of, gradient_norms
from relax.components.messages import AdvantageReport, ReleaseReport, partition_of
from relax.components.rollout_metrics import pass_rates, release_metrics
from relax.core.build import InProcess, Wiring, algorithm_options, build_advantages
from relax.core.controller import loop_settings
from relax.core.part_reports import join_advantages, join_releases
from relax.core.replay.capture import SampleTokens, StepView, view_step
from relax.core.replay.compare import close
from relax.core.replay.record import RunRecord
from relax.core.replay.replay import trace_check
from relax.core.replay.rerun import released_groups, why_inexact
from relax.core.step_metrics import OBJECTIVE
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.engine.rollout.evaluate import PASSED
from relax.schedule.clock import RealClock
from relax.utils.errors import ConfigError, DataError
from relax.utils.metrics import find_spec

_KINDS = {
    "staleness_steps": "version",
    "staleness_fraction": "version",
    "zero_std_groups_fraction": "group",
    "pass": "group",
}
CRITICS = "comes from the critic's values: `relax replay` computes them again, and no rows of the actor add up to it"
CRITIC_METRICS = frozenset(
    f"train/{name}"
    for name in (
        *("value_loss", "value_clip_fraction", "value", "return", "explained_variance"),
        *("critic_grad_norm", "critic_lr"),
    )
)
MEASURED = "is measured while the run runs (a time, or a count of events): nothing computes it again"


class Row(NamedTuple):
    """One part of a number: it adds `total`, and counts `count` in the divisor."""

    name: str
    total: float
    count: float
    what: str = ""


@dataclass(frozen=True)
class Explanation:
    """Where a number comes from. `recomputed` is by the run's own code, `rows` by float64 sums of its parts."""

    metric: str
    curve: float
    recomputed: float
    rows: tuple[Row, ...]
    formula: str
    of_rows: float  # what the rows give
    kind: str = "sample"  # of the rows
    inexact: str = ""  # why bits need not agree, "" when they must

    @property
    def equal(self) -> bool:
        """Bit for bit where that is promised, else within `compare.TOLERANCE`."""
        return self.curve == self.recomputed or (bool(self.inexact) and close(self.curve, self.recomputed))

    @property
    def gap(self) -> float:
        """|rows - curve|: float32 sums against float64 ones."""
        return abs(self.of_rows - self.curve)


class Why:
    """Explains the numbers of one step. Reads the trace once; the step is trained again only when that is needed."""

    def __init__(self, record: RunRecord, step: int) -> None:
        self.record, self.step = record, record.step(step)
        damaged = trace_check(record, self.step).differences
        if damaged:
            raise DataError(str(damaged[0]), where=str(record.folder.trace))
        self.blocks: dict[int, Block] = {group: record.block(group) for group in self.step.groups}
        self.curves = record.metrics(step)
        if not self.curves:
            raise ConfigError(f"--step {step}: metrics/metrics.jsonl of {record.folder.root} has no line of this step")
        self._view: StepView | None = None
        self._advantages: AdvantageReport | None = None

    # ------------------------------------------------------------------ one number

    async def explain(self, metric: str) -> Explanation:
        """Raises ConfigError for a metric that the step does not have or that nothing computes again."""
        if metric not in self.curves:
            raise ConfigError(f"--metric {metric}: step {self.step.rollout_id} has {', '.join(self.curves)}")
        if metric in CRITIC_METRICS or (metric == "rollout/advantage_abs/mean" and self.record.config.uses_critic):
            raise ConfigError(f"--metric {metric} {CRITICS}")
        found = await self._explain(metric)
        if found is None:
            raise ConfigError(f"--metric {metric} {MEASURED}: {find_spec(metric).meaning}")
        return found

    async def overview(self) -> list[Explanation | str]:
        """Every metric of the step: explained, or its name when it is a measurement."""
        return [await self._explain(metric) or metric for metric in self.curves]

    async def _explain(self, metric: str) -> Explanation | None:
        if metric in CRITIC_METRICS:
            return None
        name = metric.removeprefix("rollout/")
        if name != metric:
            return await self._rollout(metric, name)
        name = metric.removeprefix("train/")
        return None if name == metric else await self._train(metric, name)

    # ------------------------------------------------------------------ from the trace

    async def _rollout(self, metric: str, name: str) -> Explanation | None:
        sums, maxima = self._released.metrics, self._released.maxima
        if name == "staleness_steps/mean" or name == "staleness_steps/max":
            rows = self._ages()
        elif name.startswith("staleness_fraction/"):
            rows = self._ages(only=int(name.split("/")[1]))
        elif name.startswith("pass@"):
            rows = self._passes(int(name.removeprefix("pass@")))
        elif name == "kl_penalty/mean":
            view = await self.view()
            total, count = view.advantages.metrics[metric]
            return self._mean(metric, total / count, self._penalty_rows(view), "sample")
        elif name == "trained_groups":
            rows = [Row(f"g{group}", 1.0, 0.0) for group in self.step.groups]
            return self._total(metric, float(len(rows)), rows, "groups", kind="group")
        elif name == "advantage_abs/mean" and self.record.config.uses_critic:
            return None
        elif name in ("advantage_abs/mean", "zero_std_groups_fraction"):
            sums = (await self._advantage_report()).metrics
            rows = self._advantage_rows() if name == "advantage_abs/mean" else self._flat_groups()
        else:
            rows = self._sample_rows(name)
        if rows is None:
            return None
        kind = _KINDS.get(name.split("/")[0].split("@")[0], "sample")
        if metric in maxima:
            largest = max((row.total / row.count for row in rows if row.count), default=0.0)
            return self._made(metric, maxima[metric], rows, "the largest row", largest, kind)
        total, count = sums[metric]
        return self._mean(metric, total / count, rows, kind)

    @functools.cached_property
    def _released(self) -> ReleaseReport:
        """What the rollout role reported, but for times: they are not known any more."""
        parts = []
        for part in self.step.parts:
            rows = [row for group in part for row in self._rows.get(group, ())]
            blocks = [self.blocks[group] for group in part]
            sums, maxima = release_metrics(
                self.step.rollout_id,
                blocks,
                [{} for _ in part],
                rows,
                max_staleness=self.record.config.cluster.max_staleness,
            )
            parts.append(ReleaseReport(released_groups(blocks, {}), sums, maxima))
        return join_releases(parts)

    @functools.cached_property
    def _rows(self) -> dict[int, list[dict[str, Any]]]:
        """{group: result rows of its samples}"""
        return {group: notes["rows"] for group, notes in self.record.notes(self.blocks).items() if "rows" in notes}

    def _sample_rows(self, name: str) -> list[Row] | None:
        found: list[Row] = []
        parts = {(g, i): row["reward_parts"] for g, rows in self._rows.items() for i, row in enumerate(rows)}
        for uid, columns in self.samples.items():
            what = self.describe(uid)
            if name in ("reward/mean", "raw_reward/mean"):
                value = float(columns[name.split("/")[0]])
                found.append(Row(sample_text(uid), value, 1.0, what) if math.isfinite(value) else _left_out(uid, what))
            elif name.split("/")[0] in ("response_tokens", "prompt_tokens"):
                key = "response_len" if name.startswith("response") else "prompt_len"
                found.append(Row(sample_text(uid), float(columns[key]), 1.0, what))
            elif name == "truncated_fraction":
                found.append(Row(sample_text(uid), float(columns["truncated"]), 1.0, what))
            elif name == "log_probs/mean":
                kept = columns["rollout_logprobs"][columns["loss_mask"] > 0]
                found.append(Row(sample_text(uid), math.fsum(kept.tolist()), float(len(kept)), what))
            elif name.startswith("reward_parts/"):
                value = parts.get(uid, {}).get(name.split("/")[1])
                found.append(_left_out(uid, what) if value is None else Row(sample_text(uid), float(value), 1.0, what))
            else:
                return None
        return found

    def _ages(self, only: int | None = None) -> list[Row]:
        """Tokens by version. With `only`, the share of that age; the last of the histogram holds older ones too."""
        oldest = self.record.config.cluster.max_staleness
        versions = np.concatenate([block.columns["weight_version"] for block in self.blocks.values()])
        rows = []
        for version in sorted({int(v) for v in versions if v >= 0}):
            tokens, age = int((versions == version).sum()), self.step.rollout_id - version
            total = age * tokens if only is None else tokens * (min(age, oldest) == only)
            rows.append(Row(f"version {version}", float(total), float(tokens), f"{tokens} tokens of age {age}"))
        return rows

    def _passes(self, k: int) -> list[Row]:
        rows = []
        for group, block in self.blocks.items():
            rates = pass_rates([block])
            if k in rates:
                passed = int((block.columns["raw_reward"] >= PASSED).sum())
                rows.append(
                    Row(f"g{group}", rates[k][0], 1.0, f"{passed} of {len(block.columns['raw_reward'])} are right")
                )
        return rows

    def _penalty_rows(self, view: StepView) -> list[Row]:
        """The KL in the reward by the log-probs of the reference that the step was given."""
        coefficient, rows = self.record.config.algorithm.kl_coef, []
        for uid, sample in sorted(view.samples.items()):
            engine, ref = (sample.columns[name].astype(np.float64) for name in ("rollout_logprobs", "ref_logprobs"))
            total = coefficient * math.fsum((engine - ref)[sample.mask].tolist())
            rows.append(Row(sample_text(uid), total, float(sample.mask.sum()), self.describe(uid, sample)))
        return rows

    def _advantage_rows(self) -> list[Row]:
        rewards, groups = self._rewards()
        result = group_advantages(rewards, groups, **algorithm_options(self.record.config).advantage_rules())
        rows = []
        for uid, advantage, valid in zip(self.samples, result.advantage_S, result.valid_S, strict=True):
            what = f"{self.describe(uid)}, advantage {advantage:+.6g}"
            rows.append(Row(sample_text(uid), abs(float(advantage)), 1.0, what) if valid else _left_out(uid, what))
        return rows

    def _flat_groups(self) -> list[Row]:
        rewards, groups = self._rewards()
        result = group_advantages(rewards, groups, **algorithm_options(self.record.config).advantage_rules())
        rows = []
        for group in self.step.groups:
            flat = not result.informative_S[groups == group].any()
            shown = ", ".join(f"{reward:g}" for reward in rewards[groups == group])
            rows.append(Row(f"g{group}", float(flat), 1.0, f"rewards {shown}"))
        return rows

    def _rewards(self) -> tuple[np.ndarray, np.ndarray]:
        blocks = self.blocks.values()
        rewards = [block.columns["reward"] for block in blocks]
        return np.concatenate(rewards), np.concatenate([np.full(len(b.columns["reward"]), b.uid) for b in blocks])

    async def _advantage_report(self) -> AdvantageReport:
        config = self.record.config
        if self._advantages is None and (config.algorithm.kl_coef > 0 or config.uses_critic):
            self._advantages = (await self.view()).advantages  # they read what a forward computes
        if self._advantages is None:
            shared = InProcess(LocalBus({"rollout": "rollout", "advantages": "advantages"}), {}, RealClock())
            await shared.bus.put(partition_of(self.step.rollout_id), "rollout", list(self.blocks.values()))
            wiring = Wiring(self.record.folder.root, self.record.folder.root)
            role = build_advantages(self.record.config, wiring, shared)
            parts = [
                await role.compute(self.step.rollout_id, part, part is self.step.parts[-1]) for part in self.step.parts
            ]
            self._advantages = join_advantages(
                parts, loop_settings(self.record.config, self.record.folder).parts_per_step
            )
        return self._advantages

    # ------------------------------------------------------------------ trained again

    async def view(self) -> StepView:
        if self._view is None:
            self._view = await view_step(self.record, self.step)
        return self._view

    async def _train(self, metric: str, name: str) -> Explanation | None:
        if name in ("optimizer_steps", "weight_version", "engine_log_prob_diff/max"):
            return None
        view = await self.view()
        if name == "grad_norm":
            return self._gradient(metric, view)
        if name == "lr":
            rate = view.report.gauges["lr"]
            row = Row(f"optimizer step {len(view.report.steps) - 1} of the rollout", rate, 1.0, "by --lr-decay-style")
            return self._made(metric, rate, [row], "the learning rate of the last optimizer step", rate, "step")
        if name == "trained_tokens":
            rows = self._term_rows(view, "ratio", counts=True)
            return self._total(metric, view.report.metrics["ratio"][1], rows, "tokens with mask 1")
        if name == "effective_sample_fraction":
            return self._effective(metric, view)
        if name.startswith("gradient_norm/"):
            return self._term_gradient(metric, name.removeprefix("gradient_norm/"), view)
        if name not in view.report.metrics:
            return None
        total, count = view.report.metrics[name]
        if any(name not in sample.terms for sample in view.samples.values()):
            return self._mean(
                metric, total / count, [Row("all tokens", total, count, "of whole optimizer steps")], "sample"
            )
        if name in OBJECTIVE:
            divisor = sum(view.advantages.divisors)
            rows = self._term_rows(view, name)
            reduction = algorithm_options(self.record.config).loss_reduction
            formula = f"sum of the rows / {divisor:g}, the divisor of {len(view.report.steps)} optimizer step(s)"
            whole = math.fsum(row.total for row in rows) / divisor
            return self._made(metric, total / divisor, rows, f"{formula} (--loss-reduction {reduction})", whole)
        return self._mean(metric, total / count, self._term_rows(view, name), "sample")

    def _term_rows(self, view: StepView, term: str, *, counts: bool = False) -> list[Row]:
        rows = []
        for uid, sample in sorted(view.samples.items()):
            tokens = float(sample.mask.sum())
            total = tokens if counts else math.fsum(sample.terms[term].tolist())
            rows.append(Row(sample_text(uid), total, tokens, self.describe(uid, sample)))
        return rows

    def _gradient(self, metric: str, view: StepView) -> Explanation:
        last = view.report.steps[-1]
        divisor = view.advantages.divisors[-1]
        rows = [Row(name, norm**2, 0.0, f"norm {norm / divisor:.6g}") for name, norm in last["gradient"].items()]
        whole = math.sqrt(math.fsum(row.total for row in rows)) / divisor
        formula = f"sqrt(sum of the squares) / {divisor:g}, of the last optimizer step, before the clip"
        return self._made(metric, view.report.gauges["grad_norm"], rows, formula, whole, "tensor")

    def _term_gradient(self, metric: str, term: str, view: StepView) -> Explanation:
        step, divisor = view.report.steps[-1], divisor_of(view.advantages.divisors[-1])
        norm = gradient_norms(step["sums"], divisor)[term]
        row = Row(f"optimizer step {len(view.report.steps) - 1} of the rollout", norm, 1.0, "over all trained tokens")
        formula = f"sqrt(sum over tokens of (d {term} / d log-prob)^2) / {divisor:g}, the divisor of the step"
        return self._made(metric, norm, [row], formula, norm, "step")

    def _effective(self, metric: str, view: StepView) -> Explanation:
        (first, count), (second, _) = view.report.metrics["importance"], view.report.metrics["importance_square"]
        value = (first / count) ** 2 / (second / count)
        rows = self._term_rows(view, "importance")
        squares = math.fsum(row.total for row in self._term_rows(view, "importance_square")) / count
        whole = (math.fsum(row.total for row in rows) / count) ** 2 / squares
        formula = f"(mean importance {first / count:.9g})^2 / mean square {second / count:.9g}"
        return self._made(metric, value, rows, formula, whole)

    # ------------------------------------------------------------------ pieces

    @functools.cached_property
    def samples(self) -> dict[tuple[int, int], dict[str, Any]]:
        """{(group, place): columns of the sample alone} in uid order."""
        found = {}
        for group, block in self.blocks.items():
            columns, ends = block.columns, np.cumsum(block.columns["response_len"].astype(np.int64))
            for place, end in enumerate(ends.tolist()):
                start = end - int(columns["response_len"][place])
                own = {name: columns[name][place] for name in ("reward", "raw_reward", "response_len", "prompt_len")}
                own |= {"truncated": columns["truncated"][place], "removed": columns["removed"][place]}
                own |= {n: columns[n][start:end] for n in ("rollout_logprobs", "loss_mask", "weight_version")}
                first, last = columns["token_offsets"][place : place + 2].tolist()
                own["tokens"] = columns["tokens"][first:last]
                found[(group, place)] = own
        return found

    def describe(self, uid: tuple[int, int], sample: SampleTokens | None = None) -> str:
        """Reward, versions and, once trained again, advantage and ratios of a sample."""
        own = self.samples[uid]
        versions = sorted({int(v) for v in own["weight_version"] if v >= 0})
        words = [f"reward {own['reward']:g}", f"version {', '.join(map(str, versions)) or 'none'}"]
        if own["removed"]:
            words.append("removed: it has no loss weight")
        if sample is not None and sample.mask.any():
            ratios = sample.terms["ratio"][sample.mask]
            if "advantages" in sample.columns:
                words.append(f"advantage {sample.columns['advantages'][sample.mask][0]:+.6g}")
            words.append(f"weight {sample.columns['loss_weight'][sample.mask][0]:.6g}")
            words.append(f"ratio {ratios.min():.6g} to {ratios.max():.6g}")
        return ", ".join(words)

    def _mean(self, metric: str, value: float, rows: list[Row], kind: str) -> Explanation:
        count = math.fsum(row.count for row in rows)
        whole = math.fsum(row.total for row in rows) / count if count else 0.0
        unit = {"sample": "counted", "version": "tokens", "group": "groups"}[kind]
        return self._made(metric, value, rows, f"sum of the rows / {count:g} {unit}", whole, kind)

    def _total(self, metric: str, value: float, rows: list[Row], what: str, kind: str = "sample") -> Explanation:
        return self._made(metric, value, rows, f"number of {what}", math.fsum(row.total for row in rows), kind)

    def _made(
        self, metric: str, value: float, rows: list[Row], formula: str, of_rows: float, kind: str = "sample"
    ) -> Explanation:
        ordered = tuple(sorted(rows, key=lambda row: -abs(row.total)))
        inexact = why_inexact(self.record) if metric.startswith("train/") else ""
        return Explanation(metric, self.curves[metric], value, ordered, formula, of_rows, kind, inexact)


def _left_out(uid: tuple[int, int], what: str) -> Row:
    return Row(sample_text(uid), 0.0, 0.0, f"{what}: not a number, left out")


def sample_text(uid: tuple[int, int]) -> str:
    return f"g{uid[0]}.{uid[1]}"


def parse_sample(text: str, known: Mapping[tuple[int, int], Any]) -> tuple[int, int]:
    """`g12.3` or `12.3`: group 12, sample 3 in the order of the trace."""
    group, dot, place = text.removeprefix("g").partition(".")
    if not (dot and group.isdecimal() and place.isdecimal()):
        raise ConfigError(f"--sample {text}: write group and sample, such as g12.3")
    uid = (int(group), int(place))
    if uid not in known:
        raise ConfigError(f"--sample {text}: the step trained {', '.join(map(sample_text, sorted(known)))}")
    return uid
