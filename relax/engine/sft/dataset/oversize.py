# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Cutting a sample that has more tokens than a micro-batch holds (`--sft-oversize-strategy truncate_*`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relax.data.chat import kept_range


def cut(costs: Sequence[int], is_medium: np.ndarray, limit: int, side: str) -> tuple[slice, slice]:
    """Which ids stay, and which media, so that at most `limit` expanded tokens are left.

    `costs` are the expanded tokens of each id: 1, or those of a whole medium (`is_medium`, bool [T]), which stays
    whole or goes whole. `truncate_left` keeps the end, `truncate_right` the start. Media count in order of appearance.
    """
    kept = kept_range(costs, limit, side=side)
    first = int(is_medium[: kept.start].sum())
    window = slice(kept.start, kept.stop)
    return window, slice(first, first + int(is_medium[window].sum()))
