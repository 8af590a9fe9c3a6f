# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Metrics: one table of names, and rows that add up exactly. `relax.utils.metric_collector` merges and writes them.

A name outside the table is an error; a metric that was not measured is absent, never zero. Means travel as
(sum, count) and are divided once, when a step is written. `docs/metrics.md` is generated from the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

from relax.utils.errors import InternalError, MetricConflict

Kind = Literal["mean", "gauge", "max", "count"]


class MetricSpec(NamedTuple):
    """A declared metric. `{...}` in the name stands for one path segment."""

    name: str
    kind: Kind  # how values of one step combine
    unit: str
    meaning: str


RANKING_METRICS = (
    ("reward_margin", "1", "chosen minus rejected"),
    ("strict_accuracy", "1", "pairs whose chosen answer is ahead"),
    ("tie_rate", "1", "pairs without a difference"),
    ("tie_aware_accuracy", "1", "pairs ahead, a tie counting one half"),
)
INTERVAL_METRICS = (
    ("tie_aware_accuracy_low", "1", "lower end of its 95 % interval, by resampling pairs"),
    ("tie_aware_accuracy_high", "1", "upper end of that interval"),
)
PREFERENCE_METRICS = {
    "dpo": (
        ("loss", "nats", "-log sigmoid of the margin, over pairs"),
        ("logps_chosen", "nats", "summed log-prob of the chosen answer"),
        ("logps_rejected", "nats", "summed log-prob of the rejected answer"),
        ("ref_logps_chosen", "nats", "the same under the reference"),
        ("ref_logps_rejected", "nats", "the same under the reference"),
        ("reward_chosen", "1", "beta x (log-prob - reference) of the chosen answer"),
        ("reward_rejected", "1", "the same of the rejected answer"),
    ),
    "reward_model": (
        ("loss", "nats", "-log sigmoid of the margin, over pairs"),
        ("score_chosen", "1", "score of the chosen conversation"),
        ("score_rejected", "1", "score of the rejected conversation"),
    ),
}

TABLE: tuple[MetricSpec, ...] = (
    # what the rollout produced; a step is the rollout that the trainer just finished
    MetricSpec("rollout/reward/mean", "mean", "reward", "reward of the trained samples, after shaping"),
    MetricSpec("rollout/raw_reward/mean", "mean", "reward", "reward as the reward function gave it"),
    MetricSpec("rollout/raw_reward/std", "gauge", "reward", "standard deviation of the raw rewards in the step"),
    MetricSpec("rollout/reward_parts/{part}/mean", "mean", "reward", "one entry of a dict reward"),
    MetricSpec("rollout/{dataset}/reward/mean", "mean", "reward", "reward by data set of a mixture"),
    MetricSpec("rollout/advantage_abs/mean", "mean", "reward", "size of the advantages"),
    MetricSpec("rollout/zero_std_groups_fraction", "mean", "1", "groups whose samples all got the same reward"),
    MetricSpec("rollout/response_tokens/mean", "mean", "tokens", "response length, observations included"),
    MetricSpec("rollout/response_tokens/max", "max", "tokens", "longest response"),
    MetricSpec("rollout/sampled_tokens", "count", "tokens", "tokens that the policy sampled, dropped ones included"),
    MetricSpec("rollout/prompt_tokens/mean", "mean", "tokens", "prompt length, media expanded"),
    MetricSpec("rollout/truncated_fraction", "mean", "1", "samples cut by a length limit"),
    MetricSpec("rollout/failed_samples", "count", "samples", "samples whose generate or reward function failed"),
    MetricSpec("rollout/dropped_groups", "count", "groups", "groups that never reach training, whatever the reason"),
    MetricSpec("rollout/dropped_groups/{reason}", "count", "groups", "the same by reason: stale, filter, failed"),
    MetricSpec("rollout/trained_groups", "count", "groups", "groups that this step trains on"),
    MetricSpec("rollout/staleness_steps/mean", "mean", "steps", "age of sampled tokens: rollout id - weight version"),
    MetricSpec("rollout/staleness_steps/max", "max", "steps", "oldest sampled token of the step"),
    MetricSpec(
        "rollout/staleness_fraction/{age}", "mean", "1", "share of the sampled tokens of that age (or older, the last)"
    ),
    MetricSpec(
        "rollout/pass@{k}", "mean", "1", "at least one of k samples has raw reward 1 or more (unbiased estimate)"
    ),
    MetricSpec("rollout/kl_penalty/mean", "mean", "reward", "KL in the reward with its coefficient, by trained token"),
    MetricSpec("rollout/log_probs/mean", "mean", "nats", "engine's log-prob of sampled tokens"),
    # what the optimizer did
    MetricSpec("train/loss", "mean", "1", "the loss that is differentiated"),
    MetricSpec("train/policy_loss", "mean", "1", "policy-gradient term, weighted"),
    MetricSpec("train/kl_loss", "mean", "nats", "KL term with its coefficient, weighted"),
    MetricSpec("train/kl_ref", "mean", "nats", "KL(current || reference) by --kl-loss-type"),
    MetricSpec("train/entropy", "mean", "nats", "entropy of the policy over trained tokens"),
    MetricSpec("train/entropy_loss", "mean", "nats", "entropy term with its coefficient, weighted"),
    MetricSpec("train/sft_loss", "mean", "nats", "cross-entropy of supervised tokens"),
    MetricSpec("train/accuracy", "mean", "1", "texts whose class is the one with the largest logit"),
    MetricSpec("train/micro_precision", "mean", "1", "right classes among those that were predicted, over all texts"),
    MetricSpec("train/micro_recall", "mean", "1", "predicted classes among those that apply, over all texts"),
    MetricSpec("train/micro_f1", "mean", "1", "2 x right / (predicted + applying), over all texts"),
    MetricSpec("train/subset_accuracy", "mean", "1", "texts whose classes are all right"),
    MetricSpec("train/mtp_loss", "mean", "nats", "MTP term with its factor, weighted"),
    MetricSpec("train/mtp_nll", "mean", "nats", "cross-entropy of the tokens that MTP layers predict"),
    *(
        MetricSpec(f"train/{kind}/{name}", "mean", unit, meaning)
        for kind, rows in PREFERENCE_METRICS.items()
        for name, unit, meaning in (*rows, *RANKING_METRICS)
    ),
    MetricSpec("train/clip_fraction", "mean", "1", "trained tokens whose gradient the clip cut"),
    MetricSpec("train/dual_clip_fraction", "mean", "1", "trained tokens held by the dual clip"),
    MetricSpec("train/ratio", "mean", "1", "current / old probability of trained tokens"),
    MetricSpec(
        "train/ratio_fraction/{range}", "mean", "1", "trained tokens whose ratio lies in that range: a histogram"
    ),
    MetricSpec("train/ratio_overflow_fraction", "mean", "1", "tokens whose log-ratio had to be bounded"),
    MetricSpec("train/approx_kl", "mean", "nats", "KL(old || current) by (ratio - 1) - log ratio"),
    MetricSpec("train/advantage_abs", "mean", "reward", "size of the advantages of trained tokens"),
    MetricSpec("train/importance", "mean", "1", "current / engine probability of trained tokens"),
    MetricSpec("train/importance_square", "mean", "1", "its square"),
    MetricSpec("train/effective_sample_fraction", "gauge", "1", "(mean importance)^2 / mean importance^2"),
    MetricSpec("train/log_prob_difference_abs", "mean", "nats", "|current - engine| log-prob of trained tokens"),
    MetricSpec("train/tis", "mean", "1", "old / engine probability before truncation"),
    MetricSpec("train/tis_abs", "mean", "1", "|tis - 1|"),
    MetricSpec("train/tis_clip_fraction", "mean", "1", "importance weights that were truncated"),
    MetricSpec("train/m2_before", "mean", "nats^2", "(current - old log-prob)^2 of the step's harmful tokens (m2po)"),
    MetricSpec("train/m2_after", "mean", "nats^2", "the same, held at the threshold: at most --m2po-budget"),
    MetricSpec("train/m2_threshold", "mean", "nats", "|current - old log-prob| from which m2po clips"),
    MetricSpec("train/opsm_fraction", "mean", "1", "tokens of sequences that were masked as off-policy"),
    MetricSpec("train/logprob_outlier_fraction", "mean", "1", "sequences masked by --logprob-outlier-limit"),
    MetricSpec("train/engine_log_prob_diff/mean", "mean", "nats", "|engine - trainer| log-prob, same weights"),
    MetricSpec("train/engine_log_prob_diff/p99", "gauge", "nats", "its 99th percentile over tokens"),
    MetricSpec("train/engine_log_prob_diff/max", "max", "nats", "largest such difference"),
    MetricSpec(
        "train/gradient_norm/{term}", "gauge", "1", "root of the sum of squares of the term's derivatives by log-probs"
    ),
    MetricSpec("train/opd_kl", "mean", "nats", "divergence from the teacher by --opd-kl-type, trained tokens"),
    MetricSpec("train/opd_loss", "mean", "nats", "the teacher's term with its coefficient, weighted"),
    MetricSpec("train/value_loss", "mean", "reward^2", "the critic's loss, weighted as the policy loss is"),
    MetricSpec("train/value_clip_fraction", "mean", "1", "trained tokens whose held value decided the critic's loss"),
    MetricSpec("train/value", "mean", "reward", "the critic's value of trained tokens, while it trains"),
    MetricSpec("train/return", "mean", "reward", "what the critic is trained on"),
    MetricSpec(
        "train/explained_variance", "gauge", "1", "1 - Var(return - value) / Var(return), values before training"
    ),
    MetricSpec(
        "train/critic_grad_norm", "gauge", "1", "the critic's gradient norm after the divisor, before the clip"
    ),
    MetricSpec("train/critic_lr", "gauge", "1", "the critic's learning rate"),
    MetricSpec("train/grad_norm", "gauge", "1", "gradient norm after the divisor, before the clip"),
    MetricSpec("train/lr", "gauge", "1", "learning rate of the step"),
    MetricSpec("train/optimizer_steps", "gauge", "steps", "optimizer steps so far"),
    MetricSpec("train/weight_version", "gauge", "rollouts", "rollouts whose training the weights contain"),
    MetricSpec("train/trained_tokens", "count", "tokens", "tokens with a loss weight"),
    MetricSpec("train/custom/{term}", "mean", "1", "a term that a user's own loss returns"),
    # rows of supervised fine-tuning
    MetricSpec("sft/rows", "count", "rows", "rows that this step trains on"),
    MetricSpec("sft/tokens", "count", "tokens", "their tokens, prompts included"),
    MetricSpec("sft/sample_tokens/mean", "mean", "tokens", "length of a sample, media expanded"),
    MetricSpec("sft/sample_tokens/max", "max", "tokens", "longest sample"),
    MetricSpec("sft/epoch", "gauge", "epochs", "passes over the training rows so far"),
    MetricSpec("sft/skipped_rows", "count", "rows", "rows that were left out on the way to this step"),
    MetricSpec("sft/skipped_rows/{reason}", "count", "rows", "the same by reason: oversize, invalid_multimodal"),
    # held-out data
    MetricSpec("eval/{dataset}/loss", "gauge", "nats", "mean loss of a supervised token, or of a sequence"),
    MetricSpec("eval/{dataset}/ppl", "gauge", "1", "perplexity, exp(loss)"),
    MetricSpec("eval/{dataset}/tokens", "gauge", "tokens", "supervised tokens of the evaluation"),
    MetricSpec("eval/{dataset}/accuracy", "gauge", "1", "texts whose class is right"),
    MetricSpec("eval/{dataset}/micro_precision", "gauge", "1", "right classes among the predicted, over all texts"),
    MetricSpec(
        "eval/{dataset}/micro_recall", "gauge", "1", "predicted classes among those that apply, over all texts"
    ),
    MetricSpec("eval/{dataset}/micro_f1", "gauge", "1", "their harmonic mean"),
    MetricSpec("eval/{dataset}/subset_accuracy", "gauge", "1", "texts whose classes are all right"),
    *(
        MetricSpec(f"eval/{{dataset}}/{kind}_{name}", "gauge", unit, meaning)
        for kind, rows in PREFERENCE_METRICS.items()
        for name, unit, meaning in (*rows, *RANKING_METRICS, *INTERVAL_METRICS)
    ),
    MetricSpec("eval/{dataset}/rows", "gauge", "rows", "rows of the evaluation"),
    MetricSpec("eval/{dataset}/skipped_rows", "gauge", "rows", "evaluation rows that were left out"),
    MetricSpec("eval/{dataset}/reward/mean", "mean", "reward", "reward on an evaluation set"),
    MetricSpec("eval/{dataset}/pass@{k}", "mean", "1", "at least one of k samples is right (unbiased estimate)"),
    MetricSpec("eval/{dataset}/truncated_fraction", "mean", "1", "evaluation samples cut by a length limit"),
    MetricSpec("eval/{dataset}/response_tokens/mean", "mean", "tokens", "response length on an evaluation set"),
    MetricSpec("eval/weight_version", "gauge", "rollouts", "version that was evaluated"),
    # where the time went
    MetricSpec("perf/step_s", "gauge", "s", "wall time from one optimizer step's end to the next one's"),
    MetricSpec("perf/sampled_tokens_per_s", "gauge", "tokens/s", "sampled tokens / step_s, dropped ones included"),
    MetricSpec("perf/trained_tokens_per_s", "gauge", "tokens/s", "trained tokens / step_s"),
    MetricSpec("perf/wait_s/{role}", "gauge", "s", "time in which the role had nothing to do"),
    MetricSpec("perf/generate_s/mean", "mean", "s", "a group's generation, until its last sample has ended"),
    MetricSpec("perf/generate_s/max", "max", "s", "slowest generation of the step"),
    MetricSpec("perf/reward_s/mean", "mean", "s", "a group's rewards, until its last sample has one"),
    MetricSpec("perf/reward_s/max", "max", "s", "slowest rewards of the step"),
    MetricSpec("perf/reward_queue_s/mean", "mean", "s", "of these, waiting for a turn of --reward-max-concurrency"),
    MetricSpec("perf/forward_backward_s", "gauge", "s", "actor's forward and backward"),
    MetricSpec("perf/score_s", "gauge", "s", "actor's scoring of reference, old and sampled log-probs"),
    MetricSpec("perf/critic_s", "gauge", "s", "the critic's forward, backward and update"),
    MetricSpec("perf/optimizer_s", "gauge", "s", "gradient reduction, clip and update"),
    MetricSpec("perf/weight_sync_s", "gauge", "s", "publish to installed in every engine"),
    MetricSpec("perf/weight_sync_bytes", "gauge", "bytes", "tensors that each engine took; 0: it had their bits"),
    MetricSpec("perf/generation_stall_s", "gauge", "s", "engines held still for a weight install"),
    MetricSpec("perf/render_s", "gauge", "s", "rendering the samples of a step, summed over workers"),
    MetricSpec("perf/checkpoint_s", "gauge", "s", "writing a checkpoint"),
    MetricSpec("perf/eval_s", "gauge", "s", "an evaluation"),
    MetricSpec(
        "perf/predict_s", "gauge", "s", "a generative prediction, with the weights on their way to the engines"
    ),
    MetricSpec("perf/open_groups", "gauge", "groups", "groups admitted and not yet in installed weights"),
    MetricSpec("perf/dropped_metrics", "gauge", "rows", "rows that a slow sink lost so far"),
    MetricSpec(
        "perf/missing_reports", "gauge", "values", "values that roles had for the metrics service and it never got"
    ),
    MetricSpec(
        "perf/refused_reports", "gauge", "values", "reported values that are in no row: conflicts, steps long over"
    ),
    # what a user's code reports to the metrics service
    MetricSpec("custom/{name}", "gauge", "1", "a reported value; the last one of a step"),
    MetricSpec("custom/{name}/mean", "mean", "1", "mean of the reported values of a step"),
    MetricSpec("custom/{name}/max", "max", "1", "largest reported value of a step"),
    MetricSpec("custom/{name}/count", "count", "1", "sum of the reported values of a step"),
)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("^" + re.sub(r"\\\{[a-z_]+\\\}", "[^/]+", re.escape(name)) + "$")


_EXACT = {spec.name: spec for spec in TABLE if "{" not in spec.name}
_TEMPLATES = [(_pattern(spec.name), spec) for spec in TABLE if "{" in spec.name]


@lru_cache(maxsize=4096)
def find_spec(name: str) -> MetricSpec:
    """The table's entry for `name`; raises for an undeclared name."""
    if name in _EXACT:
        return _EXACT[name]
    for pattern, spec in _TEMPLATES:
        if pattern.match(name):
            return spec
    raise InternalError(
        f"metric {name!r} is not declared: add it to TABLE in relax/utils/metrics.py, with unit and meaning"
    )


class Sink(Protocol):
    """Takes the finished numbers of one step."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


RUN = "run"  # the owner of what the run itself measures


class Row:
    """One step's values as (sum, count), so that rows of several roles add up to one."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[float, float]] = {}
        self._owners: dict[str, str] = {}  # of gauges

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, name: str, total: float, count: float = 1.0, *, owner: str = RUN) -> None:
        """Combine as the table declares. An owner may set its gauge again; another one's value is a conflict."""
        kind = find_spec(name).kind
        before = self._parts.get(name)
        if kind == "mean":
            if count <= 0:
                return
            before = before or (0.0, 0.0)
            self._parts[name] = before[0] + float(total), before[1] + float(count)
        elif kind == "count":
            self._parts[name] = (before[0] if before else 0.0) + float(total), 1.0
        elif kind == "max":
            self._parts[name] = max(float(total), before[0] if before else float("-inf")), 1.0
        else:
            holder = self._owners.setdefault(name, owner)
            if before and holder != owner and before[0] != float(total):
                raise MetricConflict(f"{name} is {before[0]:g} by {holder!r} and {total:g} by {owner!r}")
            self._parts[name] = float(total), 1.0

    def entries(self) -> list[tuple[str, float, float, str]]:
        """(name, sum, count, owner) of everything in it."""
        return [(name, *part, self._owners.get(name, RUN)) for name, part in self._parts.items()]

    def values(self) -> dict[str, float]:
        """Divided, by name in alphabetical order."""
        return {name: total / count for name, (total, count) in sorted(self._parts.items())}


class Metrics:
    """Adds up one step's measurements. Belongs to one thread."""

    def __init__(self) -> None:
        self._row = Row()

    def mean(self, name: str, total: float, count: float) -> None:
        """Add `count` measurements whose sum is `total`. A zero count measures nothing."""
        self._add(name, "mean", total, count)

    def means(self, prefix: str, sums: Mapping[str, float], counts: Mapping[str, float]) -> None:
        """Add a part's (sum, count) pairs under `prefix/`."""
        for name, total in sums.items():
            self.mean(f"{prefix}/{name}", total, counts[name])

    def gauge(self, name: str, value: float) -> None:
        """Set a value; the step's last one stays."""
        self._add(name, "gauge", value)

    def maximum(self, name: str, value: float) -> None:
        """Keep the largest value of the step."""
        self._add(name, "max", value)

    def count(self, name: str, number: float = 1) -> None:
        """Add to a count. `number` 0 says that it was counted and there were none."""
        self._add(name, "count", number)

    def take(self) -> Row:
        """The step's row; the next one starts."""
        row, self._row = self._row, Row()
        return row

    def _add(self, name: str, kind: Kind, total: float, count: float = 1.0) -> None:
        spec = find_spec(name)
        if spec.kind != kind:
            raise InternalError(f"metric {name!r} is declared as a {spec.kind}, not as a {kind}")
        self._row.add(name, total, count)


class MemorySink:
    """Keeps every step, for tests and reports."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        pass

    def series(self, name: str) -> list[float]:
        """Values of one metric in step order, steps that did not measure it left out."""
        return [values[name] for _, values in self.rows if name in values]


def markdown_table(specs: Iterable[MetricSpec] = TABLE) -> str:
    """The body of `docs/metrics.md`."""
    rows = [f"| `{s.name}` | {s.kind} | {s.unit} | {s.meaning} |" for s in specs]
    return "\n".join(["| name | combined by | unit | meaning |", "|---|---|---|---|", *rows])
