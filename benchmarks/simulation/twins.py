# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The parts of a simulated run that record what really happened, take time, or stand for a user's code."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relax.backends.base import LossFunction, Part, StepStats
from relax.backends.tiny.train import TinyTrain
from relax.backends.tiny.weights import MemoryPublisher, WeightStore
from relax.data.datasets import RawRow
from relax.utils.types import Sample

VOCABULARY, NUM_ROWS = 10, 7


class MemoryDataset:
    """A `PromptDataset` of rows that are their own number."""

    def __init__(self, num_rows: int = NUM_ROWS, name: str = "rows") -> None:
        self.digest = hashlib.sha256(f"{name}:{num_rows}".encode()).hexdigest()
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def row(self, index: int) -> RawRow:
        return RawRow({"number": index}, f"memory:{index}", Path("."))

    def prefetch(self, indices: Any) -> None: ...

    def close(self) -> None: ...


class RecordingTrain(TinyTrain):
    """Remembers what it was really given: one list of (uid, tokens, loss weights) a backward call."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.trained: list[list[tuple[tuple[int, int], tuple[int, ...], np.ndarray]]] = []

    def backward(self, part: Part, loss: LossFunction) -> StepStats:
        self.trained.append(
            [
                (s.uid, tuple(s.tokens.tolist()), s.columns["loss_weight"])
                for micro in part.micro_batches
                for s in micro
            ]
        )
        return super().backward(part, loss)


class RecordingPublisher(MemoryPublisher):
    """Keeps every published table."""

    def __init__(self, store: WeightStore) -> None:
        super().__init__(store)
        self.tables: dict[int, np.ndarray] = {}

    def publish(self, version: int, weights: Any, adapter: Any = None) -> Any:
        weights = list(weights)
        self.tables[version] = weights[0][1].numpy().copy()
        return super().publish(version, weights, adapter)


class Slow:
    """A handle whose calls take time, before and after they work. It stands for a role in another process."""

    def __init__(self, role: Any, seconds: Callable[[str], float]) -> None:
        self._role, self._seconds = role, seconds

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._role, name)

        async def call(*args: Any) -> Any:
            await asyncio.sleep(self._seconds(f"{name}-before"))
            result = await method(*args)
            await asyncio.sleep(self._seconds(f"{name}-after"))
            return result

        return call


class Scorer:
    """Reward: how often the row's own token was sampled."""

    def __init__(self, noise: Callable[..., float], failures: float) -> None:
        """`failures` is the share of scores that fail."""
        self._noise, self._failures = noise, failures

    async def score(self, samples: list[Sample]) -> None:
        noise, group = self._noise, samples[0].group_index or 0
        await asyncio.sleep(5.0 * noise("reward", group))
        for sample in samples:
            response = sample.tokens[sample.prompt_length :]
            sample.reward = float(response.count(1 + (sample.row or 0)))
            # as the product's scorer leaves a failure; a rollout without any reward would rightly end the run
            if sample.index and noise("reward-fails", group, sample.index) < self._failures:
                sample.reward, sample.remove_sample = math.nan, True
