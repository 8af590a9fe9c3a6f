# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The endless sequence of prompts that a run reads: data-set order, or a new permutation each epoch.

The order of an epoch depends on (seed, epoch, number of rows) alone, so the position is two integers and the data
set's digest, and a resumed run reads on exactly where the stored one stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax.data.datasets import PromptDataset, RawRow
from relax.utils.errors import ConfigError
from relax.utils.rng import permutation


@dataclass(frozen=True)
class Prompt:
    """One draw: (data-set digest, epoch, row) is its identity."""

    epoch: int
    row: int  # in data-set order
    raw: RawRow

    @property
    def values(self) -> dict[str, Any]:
        return self.raw.values

    @property
    def where(self) -> str:
        return self.raw.where

    @property
    def folder(self) -> Path:
        return self.raw.folder


class PromptSource:
    """Draws prompts in order and knows its position. One owner; not shared between threads."""

    def __init__(
        self,
        dataset: PromptDataset,
        *,
        seed: int,
        shuffle: bool,
        start: tuple[int, int] = (0, 0),
        prefetch_rows: int = 32,
    ) -> None:
        if len(dataset) == 0:
            raise ConfigError("--prompt-data has no rows")
        self._dataset = dataset
        self._seed = seed
        self._shuffle = shuffle
        self._prefetch_rows = prefetch_rows
        self._order_of: tuple[int, np.ndarray] | None = None
        self._move(*start)

    def __len__(self) -> int:
        return len(self._dataset)

    def next(self, count: int) -> list[Prompt]:
        """The next `count` prompts; an epoch's end is crossed without a gap."""
        if count < 0:
            raise ValueError(f"count must be >= 0, got {count}")
        out = []
        for _ in range(count):
            row = int(self._order(self._epoch)[self._offset])
            out.append(Prompt(self._epoch, row, self._dataset.row(row)))
            self._move(self._epoch, self._offset + 1)
        self._dataset.prefetch(self._order(self._epoch)[self._offset : self._offset + self._prefetch_rows].tolist())
        return out

    def at(self, epoch: int, row: int) -> Prompt:
        """The prompt of a known identity, without moving: a resumed run re-admits unfinished groups with it."""
        return Prompt(epoch, row, self._dataset.row(row))

    def position(self) -> dict[str, int | str]:
        """Where `next` goes on: prompts drawn = epoch * rows + offset."""
        return {"epoch": self._epoch, "offset": self._offset, "digest": self._dataset.digest}

    def restore(self, position: Mapping[str, int | str]) -> None:
        """Go to a stored position. Raises ConfigError when the data set is not the stored one."""
        if position["digest"] != self._dataset.digest:
            raise ConfigError(
                f"the checkpoint was reading a data set with digest {position['digest']}, --prompt-data now has "
                f"{self._dataset.digest}: its content, order or slice has changed, so the position means nothing. "
                "Give the same data, or start a new run"
            )
        self._move(int(position["epoch"]), int(position["offset"]))

    def num_rollouts(self, num_epoch: int, rollout_batch_size: int) -> int:
        return num_rollouts(len(self), num_epoch=num_epoch, rollout_batch_size=rollout_batch_size)

    def _move(self, epoch: int, offset: int) -> None:
        size = len(self._dataset)
        if epoch < 0 or not 0 <= offset <= size:
            raise ConfigError(f"position epoch {epoch}, offset {offset} does not fit a data set of {size} rows")
        self._epoch, self._offset = (epoch + 1, 0) if offset == size else (epoch, offset)

    def _order(self, epoch: int) -> np.ndarray:
        if self._order_of is None or self._order_of[0] != epoch:
            size = len(self._dataset)
            order = permutation(self._seed, epoch, size) if self._shuffle else np.arange(size)
            self._order_of = (epoch, order)
        return self._order_of[1]


def num_rollouts(num_rows: int, *, num_epoch: int, rollout_batch_size: int) -> int:
    """Rollouts that `--num-epoch` epochs give: floor(epochs * rows / batch); the remainder is not drawn."""
    count = num_epoch * num_rows // rollout_batch_size
    if count < 1:
        raise ConfigError(
            f"--num-epoch {num_epoch} of {num_rows} rows gives no rollout of --rollout-batch-size "
            f"{rollout_batch_size}; lower the batch size or raise the number of epochs"
        )
    return count
