# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The hold-out of `--eval-size`: one random split by row, fixed by `--seed`, the same whoever computes it."""

from __future__ import annotations

import numpy as np

from relax.config.supervised import eval_size_rows
from relax.utils.errors import ConfigError
from relax.utils.rng import stream_key


def split_rows(count: int, eval_size: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, evaluation rows) of `count` rows, both int64 and ascending.

    `eval_size` below 1 is a share of the rows, rounded down and at least one row; from 1 on it is a number of rows.
    Rows are drawn one by one: rows that belong together, such as two captions of one image, may be parted.
    """
    held = _held_out(count, eval_size)
    random = np.random.Generator(np.random.Philox(key=stream_key(seed, "eval", count)))
    order = random.permutation(count)
    return np.sort(order[held:]).astype(np.int64), np.sort(order[:held]).astype(np.int64)


def _held_out(count: int, eval_size: float) -> int:
    if not 0 < eval_size < float("inf"):
        raise ConfigError(f"--eval-size must be above 0, got {eval_size}")
    if eval_size >= 1 and eval_size != int(eval_size):
        raise ConfigError(f"--eval-size from 1 on is a number of rows, got {eval_size}; give a whole number")
    held = eval_size_rows(eval_size, count)
    if held >= count:
        raise ConfigError(
            f"--eval-size {eval_size} takes {held} of the {count} rows of --prompt-data and leaves none to train"
        )
    return held
