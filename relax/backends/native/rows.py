# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Prompts whose rows of the KV pool several responses share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from relax.backends.exact.kv_pool import KVPool


@dataclass(eq=False)
class Prefix:
    """A prefilled prompt. Its rows live while a response holds it, or until they are needed elsewhere."""

    key: Hashable
    version: str
    rows: np.ndarray  # int64 [P]
    hidden: Tensor | None = None  # [1, H], last position; None until its prefill has run
    holders: int = 0
    cached: bool = field(default=True)  # False: no new response may join it


class PrefixCache:
    """Prefixes by (weight version, prompt). Those without holders are evicted oldest first."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._known: OrderedDict[tuple[str, Hashable], Prefix] = OrderedDict()
        self.idle_rows = 0

    def find(self, version: str, key: Hashable) -> Prefix | None:
        prefix = self._known.get((version, key))
        if prefix is not None:
            self._known.move_to_end((version, key))
        return prefix

    def add(self, version: str, key: Hashable, length: int) -> Prefix:
        prefix = Prefix(key, version, self._pool.alloc(length))
        self._known[(version, key)] = prefix
        self.idle_rows += length
        return prefix

    def hold(self, prefix: Prefix) -> None:
        if prefix.holders == 0 and prefix.cached:
            self.idle_rows -= len(prefix.rows)
        prefix.holders += 1

    def release(self, prefix: Prefix) -> None:
        prefix.holders -= 1
        if prefix.holders:
            return
        if prefix.cached:
            self.idle_rows += len(prefix.rows)
        else:
            self._pool.free(prefix.rows)

    def evict(self, rows: int) -> None:
        """Free idle prefixes, oldest first, until `rows` rows are free or none is left."""
        if self._pool.num_free >= rows:
            return
        for place, prefix in list(self._known.items()):
            if self._pool.num_free >= rows:
                return
            if prefix.holders == 0:
                self._forget(place, prefix)

    def flush(self) -> None:
        """Forget every prefix; rows still held are freed by their last holder."""
        for place, prefix in list(self._known.items()):
            self._forget(place, prefix)

    def _forget(self, place: tuple[str, Hashable], prefix: Prefix) -> None:
        del self._known[place]
        prefix.cached = False
        if prefix.holders == 0:
            self.idle_rows -= len(prefix.rows)
            self._pool.free(prefix.rows)
