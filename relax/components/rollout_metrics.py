# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a released rollout looked like, as sums and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relax.distributed.bus.base import Block
from relax.engine.rollout.evaluate import PASSED, pass_at_k

Sums = dict[str, tuple[float, float]]


def release_metrics(
    rollout_id: int,
    blocks: Sequence[Block],
    seconds: Sequence[Mapping[str, float]],
    rows: Sequence[Mapping[str, Any]],
    *,
    max_staleness: int = 0,
) -> tuple[Sums, dict[str, float]]:
    """({metric: (sum, count)}, {metric: maximum}) over the groups of one rollout.

    `seconds` holds one mapping a group, by activity; `rows` the result rows of all samples (`sample_row`). A token
    older than `max_staleness` counts as that old in the histogram of ages.
    """
    column = lambda name: np.concatenate([b.columns[name] for b in blocks])  # noqa: E731
    mean = lambda values: (float(np.sum(values, dtype=np.float64)), float(len(values)))  # noqa: E731
    versions, mask = column("weight_version"), column("loss_mask") > 0
    ages = rollout_id - versions[versions >= 0]
    raw, lengths = column("raw_reward"), column("response_len")
    finite = lambda values: values[np.isfinite(values)]  # noqa: E731
    generate = np.asarray([spent.get("generate", 0.0) for spent in seconds])
    score = np.asarray([spent.get("score", 0.0) for spent in seconds])
    sums: Sums = {
        "rollout/reward/mean": mean(finite(column("reward"))),
        "rollout/raw_reward/mean": mean(finite(raw)),
        "rollout/response_tokens/mean": mean(lengths),
        "rollout/prompt_tokens/mean": mean(column("prompt_len")),
        "rollout/truncated_fraction": mean(column("truncated")),
        "rollout/staleness_steps/mean": mean(ages),
        "rollout/log_probs/mean": mean(column("rollout_logprobs")[mask]),
        "perf/generate_s/mean": mean(generate),
        "perf/reward_s/mean": mean(score),
        "perf/reward_queue_s/mean": mean(np.asarray([spent.get("reward_queue", 0.0) for spent in seconds])),
    }
    maxima = {
        "rollout/response_tokens/max": float(lengths.max(initial=0)),
        "rollout/staleness_steps/max": float(ages.max(initial=0)),
        "perf/generate_s/max": float(generate.max(initial=0.0)),
        "perf/reward_s/max": float(score.max(initial=0.0)),
    }
    parts: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row["reward_parts"].items():
            parts.setdefault(f"rollout/reward_parts/{name}/mean", []).append(float(value))
    sums.update({name: mean(values) for name, values in parts.items()})
    for age in range(max_staleness + 1):
        sums[f"rollout/staleness_fraction/{age}"] = mean(np.minimum(ages, max_staleness) == age)
    for k, rates in pass_rates(blocks).items():
        sums[f"rollout/pass@{k}"] = mean(rates)
    return sums, maxima


def pass_rates(blocks: Sequence[Block]) -> dict[int, list[float]]:
    """{k: pass of each group with at least k rewards} for k = 1, 2, 4, ...; a raw reward of 1 or more passes."""
    rates: dict[int, list[float]] = {}
    for block in blocks:
        raw = block.columns["raw_reward"]
        raw = raw[np.isfinite(raw)]
        for power in range(raw.size.bit_length()):
            k, passed = 1 << power, int((raw >= PASSED).sum())
            rates.setdefault(k, []).append(pass_at_k(raw.size, passed, k))
    return rates
