# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every response token of one sample: who sampled it, with which probability, and what it adds to a number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax.core.build import algorithm_options
from relax.core.replay.capture import SampleTokens
from relax.core.replay.why import Explanation, Why, parse_sample
from relax.core.step_metrics import OBJECTIVE
from relax.data.model_files import load_tokenizer
from relax.utils.errors import ConfigError

OLD_COLUMN = {"rollout": "rollout_logprobs", "old": "old_logprobs", "current": None}


@dataclass(frozen=True)
class TokenRow:
    """One response token. Log-probs in nats; None where the run has no such column."""

    place: int
    text: str
    token: int
    version: int  # -1: an observation
    age: int | None
    trained: bool  # loss mask
    engine: float
    old: float
    current: float
    ref: float | None
    ratio: float
    clipped: bool
    advantage: float
    weight: float
    adds: float  # to the sum behind the metric


@dataclass(frozen=True)
class SampleStory:
    """One sample with its tokens, and what they are part of."""

    uid: tuple[int, int]
    optimizer_step: int
    divisor: float  # of the metric's sum
    what: str
    prompt: str
    response: str
    tokens: tuple[TokenRow, ...]
    metric: str  # what `adds` is about
    whole: Explanation

    @property
    def adds(self) -> float:
        return math.fsum(token.adds for token in self.tokens)


async def sample_story(why: Why, name: str, metric: str | None) -> SampleStory:
    """`metric` is a train/ metric that tokens add to; the policy loss when it is left out."""
    own = why.samples
    uid = parse_sample(name, own)
    view = await why.view()
    sample = view.samples[uid]
    metric = metric or "train/policy_loss"
    term = metric.removeprefix("train/")
    if term not in sample.terms:
        known = ", ".join(f"train/{known}" for known in sample.terms if f"train/{known}" in why.curves)
        raise ConfigError(f"--metric {metric} is no sum over tokens; with --sample there are {known}")
    whole = await why.explain(metric)
    _, count = view.report.metrics[term]
    divisor = sum(view.advantages.divisors) if term in OBJECTIVE else count
    config = why.record.config
    tokenizer = load_tokenizer(Path(config.checkpoint.hf_checkpoint))  # type: ignore[arg-type]
    tokens, length = own[uid]["tokens"].tolist(), int(own[uid]["response_len"])
    rows = _rows(sample, tokens[len(tokens) - length :], own[uid], term, why, tokenizer)
    return SampleStory(
        uid=uid,
        optimizer_step=sample.optimizer_step,
        divisor=divisor,
        what=why.describe(uid, sample),
        prompt=tokenizer.decode(tokens[: len(tokens) - length]),
        response=tokenizer.decode(tokens[len(tokens) - length :]),
        tokens=rows,
        metric=metric,
        whole=whole,
    )


def _rows(
    sample: SampleTokens, ids: list[int], own: dict[str, Any], term: str, why: Why, tokenizer: Any
) -> tuple[TokenRow, ...]:
    old_column = OLD_COLUMN[algorithm_options(why.record.config).old_log_probs]
    old = sample.log_probs if old_column is None else sample.columns[old_column]
    ref, rows = sample.columns.get("ref_logprobs"), []
    advantages = sample.columns.get("advantages", np.zeros(len(ids)))  # none with a loss of the user's own
    for place, token in enumerate(ids):
        version = int(own["weight_version"][place])
        rows.append(
            TokenRow(
                place=place,
                text=tokenizer.decode([token]),
                token=token,
                version=version,
                age=why.step.rollout_id - version if version >= 0 else None,
                trained=bool(sample.mask[place]),
                engine=float(sample.columns["rollout_logprobs"][place]),
                old=float(old[place]),
                current=float(sample.log_probs[place]),
                ref=None if ref is None else float(ref[place]),
                ratio=float(sample.terms["ratio"][place]),
                clipped=bool(sample.terms["clip_fraction"][place]),
                advantage=float(advantages[place]),
                weight=float(sample.columns["loss_weight"][place]),
                adds=float(sample.terms[term][place]),
            )
        )
    return tuple(rows)
