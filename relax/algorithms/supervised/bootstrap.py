# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How sure a preference accuracy is: a percentile bootstrap over pairs.

A pair scores 1 (chosen ahead), 1/2 (tie) or 0, so resampling pairs with replacement is a multinomial draw over the
three counts: counts are enough, and every seed gives the same interval everywhere.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, sec. 13.3.
"""

from __future__ import annotations

import numpy as np

from relax.utils.errors import InternalError

RESAMPLES = 10_000


def accuracy_interval(
    ahead: float, tied: float, pairs: float, *, seed: int = 0, resamples: int = RESAMPLES, level: float = 0.95
) -> tuple[float, float]:
    """(low, high) of the tie-aware accuracy of `pairs` pairs: `ahead` ranked right, `tied` without a difference."""
    number, counts = round(pairs), np.asarray([round(ahead), round(tied), round(pairs) - round(ahead) - round(tied)])
    if number < 1 or (counts < 0).any():
        raise InternalError(f"accuracy_interval: {ahead} ahead and {tied} tied of {pairs} pairs")
    drawn = np.random.Generator(np.random.Philox(seed)).multinomial(number, counts / number, resamples)
    accuracy = (drawn[:, 0] + 0.5 * drawn[:, 1]) / number
    low, high = np.quantile(accuracy, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
