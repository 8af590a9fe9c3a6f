# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Other weights of the same model: kept in CPU memory by tag, put in place for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from relax.backends.exact.model import DTYPES
from relax.backends.fsdp.optimizer import Shard
from relax.utils.errors import InternalError

CURRENT = "actor"  # the tag of the weights in training


class KeptWeights:
    """Copies of this rank's pieces. The shards stay the one place that the model computes with."""

    def __init__(self, shards: Sequence[Shard], trained: Sequence[Shard] | None = None) -> None:
        """Only the shards that are `trained` differ between tags; by default all of them."""
        self._shards = shards
        self._trained = shards if trained is None else trained
        self._kept: dict[str, list[Tensor]] = {}

    def keep(self, tag: str) -> None:
        """Remember the current weights under `tag`."""
        if tag == CURRENT:
            raise InternalError(f'FsdpBackend.keep: the tag "{CURRENT}" always means the current weights')
        self._kept[tag] = [shard.master.detach().to("cpu", copy=True) for shard in self._trained]

    def forget(self, tag: str) -> None:
        self._kept.pop(tag, None)

    @contextmanager
    def in_place(self, tag: str) -> Iterator[None]:
        """The weights of `tag` in the model, the current ones again afterwards."""
        if tag == CURRENT:
            yield
            return
        if tag not in self._kept:
            raise InternalError(f"no weights are kept as {tag!r}; known are {sorted([CURRENT, *self._kept])}")
        current = [shard.master.detach().clone() for shard in self._trained]
        self._put(self._kept[tag])
        try:
            yield
        finally:
            self._put(current)

    @contextmanager
    def computing_in(self, dtype: str) -> Iterator[None]:
        """The current weights rounded to another type."""
        own = [shard.parameter.data for shard in self._shards]
        for shard in self._shards:
            shard.parameter.data = shard.master.data.to(DTYPES[dtype])
        try:
            yield
        finally:
            for shard, data in zip(self._shards, own, strict=True):
                shard.parameter.data = data

    def _put(self, weights: Sequence[Tensor]) -> None:
        for shard, data in zip(self._trained, weights, strict=True):
            shard.master.data.copy_(data)
            shard.publish()
