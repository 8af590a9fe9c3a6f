# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How much of the returns' variance a critic's values explain, from sums over tokens. No torch.

    explained variance = 1 - Var(return - value) / Var(return)

1: the values are right up to a constant; 0: no better than one number for all; below 0: worse.
"""

from __future__ import annotations

Moments = tuple[float, float, float]  # sum, sum of squares, count


def explained_variance(residual: Moments, target: Moments) -> float | None:
    """From the moments of return - value and of the returns; None where all returns are equal."""
    variance = _variance(target)
    return None if variance <= 0.0 else 1.0 - _variance(residual) / variance


def _variance(moments: Moments) -> float:
    total, square, count = moments
    return 0.0 if count <= 0 else max(0.0, square / count - (total / count) ** 2)
