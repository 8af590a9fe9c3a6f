# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Keys and values of running requests, addressed by row: one row holds one token of every layer.

A prompt's rows are shared by all samples of its group: each holder calls `share`, and `free` gives a row back only
when its last holder lets go.
"""

from __future__ import annotations

import numpy as np
import torch

from relax.utils.errors import InternalError


class KVPool:
    """`num_rows` token rows; one more row, `zero_row`, always holds zeros and pads the gathered keys."""

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        shape = (num_layers, num_rows + 1, num_kv_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.num_rows = num_rows
        self.zero_row = num_rows
        self._free = np.arange(num_rows - 1, -1, -1, dtype=np.int64)  # a stack; lowest rows come first
        self._num_free = num_rows
        self._holders = np.zeros(num_rows, np.int32)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def alloc(self, count: int) -> np.ndarray:
        """`count` free rows, each with one holder. Ask `num_free` first: too many is an error."""
        if count > self._num_free:
            raise InternalError(f"KV pool: {count} rows asked for, {self._num_free} of {self.num_rows} are free")
        self._num_free -= count
        rows = self._free[self._num_free : self._num_free + count][::-1].copy()
        self._holders[rows] = 1
        return rows

    def share(self, rows: np.ndarray) -> None:
        """One more holder for each of `rows` (distinct, in use)."""
        if (self._holders[rows] < 1).any():
            raise InternalError("KV pool: share of a row that nobody holds")
        self._holders[rows] += 1

    def free(self, rows: np.ndarray) -> None:
        """One holder fewer for each of `rows` (distinct); rows without a holder are free again."""
        rows = np.asarray(rows, np.int64)
        if (self._holders[rows] < 1).any():
            raise InternalError("KV pool: free of a row that nobody holds")
        self._holders[rows] -= 1
        idle = rows[self._holders[rows] == 0][::-1]
        self._free[self._num_free : self._num_free + len(idle)] = idle
        self._num_free += len(idle)

    def reset(self) -> None:
        """Forget every holder. Rows need no clearing: a row is written before it is read."""
        self._free = np.arange(self.num_rows - 1, -1, -1, dtype=np.int64)
        self._num_free = self.num_rows
        self._holders[:] = 0
