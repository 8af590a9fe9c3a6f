# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Randomness from counters: a number depends on who asks and how often, never on arrival order.

A stream key is a 63-bit hash of (run seed, stream, group, index, turn). Token t of that stream uses Philox 4x32 with
ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) at counter t.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from relax.utils.types import Sample

STREAMS = ("sample", "eval", "shuffle", "dropout", "hook")

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_LOW32 = np.uint64(0xFFFFFFFF)


def stream_key(seed: int, stream: str, *parts: int) -> int:
    """63-bit key of a random stream; the top bit is zero so that the key fits a signed 64-bit JSON integer."""
    if stream not in STREAMS:
        raise ValueError(f"unknown random stream {stream!r}; known are {STREAMS}")
    text = ":".join([str(seed), stream, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def philox(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Philox 4x32-10 of 64-bit `keys [N]` at 64-bit `counters [N]` (upper counter words zero) -> uint32 [N, 4]."""
    keys, counters = np.asarray(keys, np.uint64), np.asarray(counters, np.uint64)
    k0, k1 = (keys & _LOW32).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    c0, c1 = (counters & _LOW32).astype(np.uint32), (counters >> np.uint64(32)).astype(np.uint32)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    with np.errstate(over="ignore"):
        for _ in range(10):
            p0, p1 = c0.astype(np.uint64) * _M0, c2.astype(np.uint64) * _M1
            hi0, lo0 = (p0 >> np.uint64(32)).astype(np.uint32), (p0 & _LOW32).astype(np.uint32)
            hi1, lo1 = (p1 >> np.uint64(32)).astype(np.uint32), (p1 & _LOW32).astype(np.uint32)
            c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
            k0, k1 = k0 + _W0, k1 + _W1
    return np.stack([c0, c1, c2, c3], axis=-1)


def uniforms(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """One float64 in [0, 1) with 53 random bits for each (key, counter) pair."""
    words = philox(keys, counters)
    high, low = words[..., 0].astype(np.uint64) >> np.uint64(5), words[..., 1].astype(np.uint64) >> np.uint64(6)
    return (high.astype(np.float64) * 67108864.0 + low.astype(np.float64)) / 9007199254740992.0


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of a data set in one epoch, recomputable from (seed, epoch) alone."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, "shuffle", epoch))).permutation(size)


def hook_generator(args: Any, sample: Sample, turn: int = 0) -> np.random.Generator:
    """Randomness for a user's function: it depends on --rollout-seed and on the sample, never on who calls first.

    `args` and `sample` are what the function was given. `turn` tells several draws for one sample apart.
    """
    key = stream_key(args.rollout_seed, "hook", sample.group_index or 0, sample.index or 0, turn)
    return np.random.Generator(np.random.Philox(key=key))
