# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which prompt each admission takes: a counter, recomputable from (seed, data-set size)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from relax.components.messages import GroupOrder
from relax.utils.rng import permutation


class PromptOrder:
    """The k-th fresh admission takes row `order(epoch)[k % size]` of epoch `k // size`.

    `again` puts a group back: after a resume it is admitted first, under its old id and with a higher attempt.
    `draw_again` puts a prompt back whose group was dropped before anybody used it: it is drawn next, for a new group.
    """

    def __init__(self, size: int, *, seed: int, shuffle: bool, drawn: int = 0) -> None:
        self._size, self._seed, self._shuffle = size, seed, shuffle
        self.drawn = drawn  # fresh prompts handed out so far
        self._again: deque[GroupOrder] = deque()
        self._postponed: deque[tuple[int, int]] = deque()
        self._cached: tuple[int, np.ndarray] | None = None

    @property
    def size(self) -> int:
        """Rows of the data set."""
        return self._size

    def next_again(self) -> GroupOrder | None:
        """A group that is to be admitted again, under its own id."""
        return self._again.popleft() if self._again else None

    def next_fresh(self) -> tuple[int, int]:
        """(epoch, row) of the next prompt."""
        if self._postponed:
            return self._postponed.popleft()
        epoch, place = divmod(self.drawn, self._size)
        self.drawn += 1
        return epoch, int(self._order(epoch)[place])

    def again(self, orders: Iterable[GroupOrder]) -> None:
        self._again.extend(replace(order, attempt=order.attempt + 1) for order in orders)

    @property
    def waiting(self) -> tuple[GroupOrder, ...]:
        """Groups put back and not admitted again so far."""
        return tuple(self._again)

    def draw_again(self, epoch: int, row: int) -> None:
        self._postponed.append((epoch, row))

    @property
    def postponed(self) -> tuple[tuple[int, int], ...]:
        """(epoch, row) of prompts that are drawn before any other."""
        return tuple(self._postponed)

    @postponed.setter
    def postponed(self, prompts: Iterable[tuple[int, int]]) -> None:
        self._postponed = deque(prompts)

    def _order(self, epoch: int) -> np.ndarray:
        if self._cached is None or self._cached[0] != epoch:
            order = permutation(self._seed, epoch, self._size) if self._shuffle else np.arange(self._size)
            self._cached = (epoch, order)
        return self._cached[1]
