# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A model whose next-token logits are a hash of the sequence that its KV rows spell, weights included.

A row holds (token, weights that computed it). If a scheduler mixes rows up, shares them across versions or loses one,
the hash and so every later token changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relax.backends.exact.kv_pool import KVPool
from relax.backends.native.input_scores import InputScores
from relax.backends.native.scheduler import Segment

VOCABULARY = 50


class FakeRunner:
    def __init__(self, num_rows: int) -> None:
        self.pool = KVPool(1, num_rows, 1, 2)
        self.weights = 0  # the number that the current weights write into KV rows
        self.prefilled_tokens = 0
        self.batch_sizes: list[int] = []

    def prefill(self, segments: Sequence[Segment]) -> list[Tensor]:
        out = []
        for segment in segments:
            self._write(segment.rows, segment.ids)
            self.prefilled_tokens += len(segment.ids)
            rows = np.concatenate([segment.parent, segment.rows])
            ends = range(len(segment.parent) + 1, len(rows) + 1) if segment.every_row else [len(rows)]
            out.append(torch.stack([self._hidden(rows[:end]) for end in ends]))
        return out

    def decode(self, ids: np.ndarray, positions: np.ndarray, keys: np.ndarray, lengths: np.ndarray) -> Tensor:
        self.batch_sizes.append(len(ids))
        places = np.arange(len(ids))
        assert np.array_equal(positions, lengths - 1), "rotary positions must follow the sequence"
        self._write(keys[places, lengths - 1], ids)
        return torch.stack([self._hidden(keys[i, : lengths[i]]) for i in range(len(ids))])

    def head(self, hidden: Tensor) -> Tensor:
        return torch.stack([logits_of(int(h[0]), int(h[1])) for h in hidden])

    def input_scores(self, hidden: Tensor, targets: np.ndarray, top: int, ids: np.ndarray | None) -> InputScores:
        scores = torch.log_softmax(self.head(hidden), -1)
        own = scores[torch.arange(len(targets)), torch.from_numpy(targets)].numpy()
        likely = scores.topk(top, dim=1) if top else None
        rivals = None if likely is None else (likely.indices.numpy(), likely.values.numpy())
        named = None if ids is None else (ids, np.take_along_axis(scores.numpy(), ids, 1))
        return InputScores(own, rivals, named)

    def _write(self, rows: np.ndarray, ids: np.ndarray) -> None:
        at = torch.from_numpy(np.asarray(rows))
        self.pool.keys[0, at, 0, 0] = torch.from_numpy(np.asarray(ids)).float()
        self.pool.keys[0, at, 0, 1] = float(self.weights)

    def _hidden(self, rows: np.ndarray) -> Tensor:
        cells = self.pool.keys[0, torch.from_numpy(np.asarray(rows)), 0].long().tolist()
        return torch.tensor([float(sequence_hash(cells)), float(self.weights)])


def sequence_hash(cells: Sequence[Sequence[int]]) -> int:
    """20 bits, which float32 holds exactly."""
    text = ",".join(f"{token}:{weights}" for token, weights in cells)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") % (1 << 20)


def logits_of(state: int, weights: int) -> Tensor:
    generator = np.random.Generator(np.random.Philox(key=state * 97 + weights))
    return torch.from_numpy(generator.normal(size=VOCABULARY).astype(np.float32) * 2)
