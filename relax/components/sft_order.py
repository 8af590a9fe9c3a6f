# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which row comes when: a stream of training rows, recomputable from counters alone.

Position p of the stream is row `permutation(seed, epoch)[p % rows]` of epoch `p // rows`, over the rows that are not
held out. A shard of a step takes an equal piece of the positions of that step, so the stream does not depend on the
number of shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relax.utils.rng import permutation


class RowOrder:
    """The stream over `rows` (numbers of data-set rows)."""

    def __init__(self, rows: Sequence[int], *, seed: int, end: int | None = None) -> None:
        self.rows = np.asarray(rows, np.int64)
        self.end = end  # positions that there are; None: no limit
        self._seed = seed
        self._cached: tuple[int, np.ndarray] | None = None

    def row(self, position: int) -> int:
        """The data-set row at a position."""
        epoch, place = divmod(position, len(self.rows))
        cached = self._cached  # threads share it: one look, one assignment
        if cached is None or cached[0] != epoch:
            cached = self._cached = (epoch, permutation(self._seed, epoch, len(self.rows)))
        return int(self.rows[cached[1][place]])

    @property
    def digest(self) -> str:
        """Of all that decides the stream; a run that goes on must find the same."""
        content = hashlib.blake2b(f"{self._seed}:".encode(), digest_size=16)
        content.update(self.rows.tobytes())
        return content.hexdigest()


@dataclass(frozen=True)
class ShardOrder:
    """Positions of one shard by its own count j = 0, 1, 2, ...: `size` of each step of `batch` positions."""

    shard: int
    shards: int
    batch: int

    @property
    def size(self) -> int:
        return self.batch // self.shards

    def position(self, count: int) -> int:
        step, inside = divmod(count, self.size)
        return step * self.batch + self.shard * self.size + inside

    def count(self, position: int) -> int:
        """The count at which a step that begins at `position` begins for this shard."""
        return position // self.shards

    def reached(self, count: int) -> int:
        """The position of the stream up to which a step that ends at `count` has drawn."""
        return count * self.shards
