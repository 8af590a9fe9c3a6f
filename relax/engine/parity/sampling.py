# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whether tokens look as if they were drawn from the distribution that the trainer gives them.

    u_t = mass of all more likely ids + v_t * own probability        v_t uniform in [0, 1)

For tokens drawn from that distribution u is uniform. A truncated or sharpened distribution leaves its end empty, also
where the log-probs that the engine reports agree with the trainer's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from relax.backends.base import TrainBackend
from relax.engine.parity.difference import Compared

TAILS = (0.8, 0.9, 0.95, 0.99)
IMPROBABLE = 1e-9  # of so few tokens in a tail by chance
FEW = 0.2  # of the expected number: filters and length limits shift a tail, only truncation empties it


class Tail(NamedTuple):
    """Tokens with u above `start`."""

    start: float
    found: int
    expected: float


def places(backend: TrainBackend, compared: Sequence[Compared]) -> np.ndarray:
    """u of the compared tokens of all ranks."""
    here = [_places(c) for c in compared]
    return np.concatenate(backend.gather(np.concatenate(here) if here else np.zeros(0)))


def _places(found: Compared) -> np.ndarray:
    group, index = found.sequence.uid
    v = np.random.default_rng((group, index)).random(len(found.trainer))
    u = found.mass_above + v * np.exp(found.trainer)
    return u[~np.isnan(u)]


def distance_from_uniform(u: np.ndarray) -> float:
    """Kolmogorov-Smirnov statistic."""
    if not u.size:
        return 0.0
    ordered, steps = np.sort(u), np.arange(u.size + 1) / u.size
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def empty_tail(u: np.ndarray) -> Tail | None:
    """The widest tail that holds far too few tokens to be chance, or None."""
    if not u.size:
        return None
    for start in TAILS:
        found, expected = int((u > start).sum()), float(u.size * (1 - start))
        if found <= FEW * expected and _log_chance(found, u.size, 1 - start) < math.log(IMPROBABLE):
            return Tail(start, found, expected)
    return None


def _log_chance(found: int, number: int, share: float) -> float:
    """Chernoff's bound on the log-probability of at most `found` of `number` at a rate of `share`."""
    rate = found / number
    if rate >= share:
        return 0.0
    first = 0.0 if rate == 0 else rate * math.log(rate / share)
    return -number * (first + (1 - rate) * math.log((1 - rate) / (1 - share)))
