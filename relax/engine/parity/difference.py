# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How far the engines' log-probs are from the trainer's, token by token, each under the weights that sampled it.

    difference_t = engine's log-prob - trainer's log-prob       nats, of sampled tokens

A token of version v is scored under the trainer's weights of version v: the current ones, or a kept copy. Tokens of a
version that is not at hand are not compared, and tokens that the policy did not sample never are.

Everything here is collective where the backend has several ranks: every rank makes the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from relax.backends.base import Part, ScoreSwitch, TrainBackend
from relax.data.columns import TrainSequence

Uid = tuple[int, int]

# Largest size of one token's difference. A token that the trainer holds impossible has log-prob -inf, and the mean
# over all tokens stays a number.
MOST_NATS = 1000.0


class Difference(NamedTuple):
    """Sizes of the differences over all ranks, in nats, and over how many tokens."""

    mean: float
    p99: float
    max: float
    count: int


@dataclass(frozen=True)
class Compared:
    """One sequence beside its scores; arrays are `[R]`, NaN where a token is not compared."""

    sequence: TrainSequence
    trainer: np.ndarray  # log-probs, float64
    mass_above: np.ndarray  # probability of all ids that the trainer holds more likely

    @property
    def engine(self) -> np.ndarray:
        return self.sequence.columns["rollout_logprobs"].astype(np.float64)

    @property
    def differences(self) -> np.ndarray:
        return np.clip(self.engine - self.trainer, -MOST_NATS, MOST_NATS)

    @property
    def sizes(self) -> np.ndarray:
        """|difference| of the compared tokens, without the others."""
        found = np.abs(self.differences)
        return found[~np.isnan(found)]

    @property
    def mean(self) -> float:
        return float(self.sizes.mean()) if self.sizes.size else 0.0


def compare(
    backend: TrainBackend, part: Part, tags: Mapping[int, str], switch: ScoreSwitch | None = None
) -> list[Compared]:
    """Score a part under each version of `tags` ({version: tag of the backend}) that any rank has tokens of."""
    sequences = [s for micro in part.micro_batches for s in micro]
    here = {int(v) for s in sequences for v in np.unique(sampled_versions(s))}
    wanted = sorted(set().union(*backend.gather(here)) & set(tags))
    trainer = {s.uid: np.full(s.response_len, np.nan) for s in sequences}
    above = {s.uid: np.full(s.response_len, np.nan) for s in sequences}
    for version in wanted:
        scores = backend.score(part, frozenset({"log_probs", "mass_above"}), tags[version], switch)
        for sequence in sequences:
            mine = sampled_versions(sequence) == version
            trainer[sequence.uid][mine] = scores[sequence.uid]["log_probs"][mine]
            above[sequence.uid][mine] = scores[sequence.uid]["mass_above"][mine]
    return [Compared(s, trainer[s.uid], above[s.uid]) for s in sequences]


def sampled_versions(sequence: TrainSequence) -> np.ndarray:
    """Version of each token that was sampled and is trained, else -1."""
    return np.where(sequence.loss_mask > 0, sequence.columns["weight_version"].astype(np.int64), -1)


def total_difference(backend: TrainBackend, compared: Sequence[Compared]) -> Difference:
    """Over the sequences of all ranks."""
    here = np.concatenate([c.sizes for c in compared]) if compared else np.zeros(0)
    sizes = np.concatenate(backend.gather(here))
    if not sizes.size:
        return Difference(0.0, 0.0, 0.0, 0)
    return Difference(float(sizes.mean()), float(np.quantile(sizes, 0.99)), float(sizes.max()), sizes.size)


def first_micro_batches(backend: TrainBackend, part: Part, max_tokens: int) -> Part:
    """The first micro-batches of a part that hold about `max_tokens` tokens over all ranks; at least one."""
    here = [sum(len(s.tokens) for s in micro) for micro in part.micro_batches]
    totals = np.sum(backend.gather(here), axis=0)
    number = int(np.searchsorted(np.cumsum(totals), max_tokens)) + 1
    return Part(part.micro_batches[:number])
