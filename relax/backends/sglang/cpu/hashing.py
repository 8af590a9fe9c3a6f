# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""MurmurHash3 x86-32 over (seed, position, column), the hash behind SGLang's seeded sampling.

SGLang's own is a GPU kernel. Here 32-bit arithmetic is done in int64, whose products need care above 2^63.
"""

from __future__ import annotations

from typing import Any

WORD = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_F1, _F2 = 0x85EBCA6B, 0xC2B2AE35
KEY_BYTES = 16  # seed (8), position (4), column (4)


def murmur_hash32(seed: Any, positions: Any, cols: Any) -> Any:
    """[rows] int seeds, [rows] positions, [columns] column numbers -> int64 [rows, columns] in [0, 2^32)."""
    import torch

    seeds = seed.to(torch.int64)[:, None]
    place = positions.to(torch.int64)[:, None] & WORD
    column = cols.to(torch.int64)[None, :] & WORD
    state = torch.zeros_like(seeds)
    for word in (seeds & WORD, (seeds >> 32) & WORD, place, column):
        state = _mix(state, word)
    state = state ^ KEY_BYTES
    state = _times(state ^ (state >> 16), _F1)
    state = _times(state ^ (state >> 13), _F2)
    return state ^ (state >> 16)


def _mix(state: Any, word: Any) -> Any:
    word = _times(_rotated(_times(word, _C1), 15), _C2)
    return (_times(_rotated(state ^ word, 13), 5) + 0xE6546B64) & WORD


def _rotated(value: Any, bits: int) -> Any:
    return ((value << bits) | (value >> (32 - bits))) & WORD


def _times(value: Any, factor: int) -> Any:
    """value * factor mod 2^32, by halves so that no product passes 2^63."""
    low, high = value & 0xFFFF, value >> 16
    return (low * factor + (((high * factor) & 0xFFFF) << 16)) & WORD
