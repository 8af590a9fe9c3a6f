# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""--normalize-advantages: advantages of a whole rollout to mean 0 and variance 1 over its trained tokens. No torch.

    whiten        (A - mean) / sqrt(var + 1e-8)        var with n - 1
    token_global  (A - mean) / sqrt(max(var, 1e-8))    var with n; REINFORCE++

Mean and variance run over the tokens with loss mask 1 of the samples that train; other tokens get 0. Equal advantages
everywhere give exactly 0. Sums are exactly rounded, so the order of samples does not matter.

Source:  REINFORCE++, arXiv:2501.03262 (global advantage normalisation).
Shapes:  a list of arrays [R], one a sample. Units: in, of the rewards; out, none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from relax.algorithms.spec import Normalization

FLOOR = 1e-8  # of the variance


def normalize(
    advantages: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    keep: Sequence[bool] | np.ndarray,
    how: Normalization,
) -> list[np.ndarray]:
    """Advantages of every token, float64; 0 where the mask is 0 or the sample is not kept."""
    kept = [
        np.asarray(mask) > 0 if used else np.zeros(len(mask), bool) for mask, used in zip(masks, keep, strict=True)
    ]
    values = [value for own, mask in zip(advantages, kept, strict=True) for value in own[mask].tolist()]
    if not values or max(values) == min(values):
        return [np.zeros(len(own)) for own in advantages]
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values)
    if how == "whiten":
        scale = math.sqrt(square / (len(values) - 1) + FLOOR)
    else:
        scale = math.sqrt(max(square / len(values), FLOOR))
    return [np.where(mask, (own - mean) / scale, 0.0) for own, mask in zip(advantages, kept, strict=True)]
