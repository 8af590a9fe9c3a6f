# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Soft punishment of overlong responses, for use inside a custom reward.

    penalty(len) = 0                        len <= L - b
                   (L - b - len) / b        L - b < len <= L
                   -1                       L < len

Source: DAPO, arXiv:2503.14476 eq. 13. Units: tokens; L = max_len, b = buffer.
"""

from __future__ import annotations


def overlong_penalty(length: int, *, max_len: int, buffer: int) -> float:
    """Between -1 and 0. `length` counts the sampled tokens (`Sample.sampled_length`); buffer 0 is a hard limit."""
    if not 0 <= buffer <= max_len:
        raise ValueError(f"buffer {buffer} must lie in 0 .. max_len ({max_len})")
    excess = length - (max_len - buffer)
    if excess <= 0:
        return 0.0
    return -1.0 if excess > buffer else -excess / buffer
