# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a released rollout looked like, as sums and counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relax.distributed.bus.base import Block
from relax.engine.rollout.groups import FinishedGroup

Sums = dict[str, tuple[float, float]]


def release_metrics(
    rollout_id: int, groups: Sequence[FinishedGroup], blocks: Sequence[Block]
) -> tuple[Sums, dict[str, float]]:
    """({metric: (sum, count)}, {metric: maximum}) over the groups of one rollout."""
    column = lambda name: np.concatenate([b.columns[name] for b in blocks])  # noqa: E731
    mean = lambda values: (float(np.sum(values, dtype=np.float64)), float(len(values)))  # noqa: E731
    versions, mask = column("weight_version"), column("loss_mask") > 0
    ages = rollout_id - versions[versions >= 0]
    raw, lengths = column("raw_reward"), column("response_len")
    finite = lambda values: values[np.isfinite(values)]  # noqa: E731
    generate = np.asarray([g.seconds.get("generate", 0.0) for g in groups])
    score = np.asarray([g.seconds.get("score", 0.0) for g in groups])
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
    }
    maxima = {
        "rollout/response_tokens/max": float(lengths.max(initial=0)),
        "rollout/staleness_steps/max": float(ages.max(initial=0)),
        "perf/generate_s/max": float(generate.max(initial=0.0)),
        "perf/reward_s/max": float(score.max(initial=0.0)),
    }
    parts: dict[str, list[float]] = {}
    for sample in (s for g in groups for s in g.samples):
        for name, value in sample.reward_parts.items():
            parts.setdefault(f"rollout/reward_parts/{name}/mean", []).append(value)
    sums.update({name: mean(values) for name, values in parts.items()})
    return sums, maxima
