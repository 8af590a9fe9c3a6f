# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A bigram policy: the logits of the next token are one row of a table, chosen by the last token.

    log p(next | last) = log_softmax(weights[last] / T)[next]        suppressed ids at -inf

Shapes: V = vocabulary, T = response tokens. Log-probs in nats, everything in float64. Trainer and engine use these
functions, so their log-probs are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WEIGHT_NAME = "bigram.weight"


def log_prob_table(weights: np.ndarray, *, temperature: float = 1.0, suppressed: Sequence[int] = ()) -> np.ndarray:
    """log p of every (last, next) pair: float64 [V, V]."""
    logits = np.asarray(weights, np.float64) / temperature
    if suppressed:
        logits = logits.copy()
        logits[:, list(suppressed)] = -np.inf
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def draw(log_prob_row: np.ndarray, uniform: float) -> int:
    """The first id whose cumulated probability exceeds `uniform` times the total."""
    cumulated = np.exp(log_prob_row).cumsum()
    threshold = min(uniform * cumulated[-1], np.nextafter(cumulated[-1], 0.0))
    return int(np.searchsorted(cumulated, threshold, side="right"))
