# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which prompt each admission takes: a counter, recomputable from (seed, data-set size)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from relax.components.messages import GroupOrder
from relax.utils.rng import permutation


class PromptOrder:
    """The k-th fresh admission takes row `order(epoch)[k % size]` of epoch `k // size`.

    `again` puts a group back: after a resume it is admitted first, under its old id and with a higher attempt.
    """

    def __init__(self, size: int, *, seed: int, shuffle: bool, drawn: int = 0) -> None:
        self._size, self._seed, self._shuffle = size, seed, shuffle
        self.drawn = drawn  # fresh prompts handed out so far
        self._again: deque[GroupOrder] = deque()
        self._cached: tuple[int, np.ndarray] | None = None

    def next_again(self) -> GroupOrder | None:
        """A group that is to be admitted again, under its own id."""
        return self._again.popleft() if self._again else None

    def next_fresh(self) -> tuple[int, int]:
        """(epoch, row) of the next prompt."""
        epoch, place = divmod(self.drawn, self._size)
        self.drawn += 1
        return epoch, int(self._order(epoch)[place])

    def again(self, orders: Iterable[GroupOrder]) -> None:
        self._again.extend(orders)

    def _order(self, epoch: int) -> np.ndarray:
        if self._cached is None or self._cached[0] != epoch:
            order = permutation(self._seed, epoch, self._size) if self._shuffle else np.arange(self._size)
            self._cached = (epoch, order)
        return self._cached[1]
