# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Versions that are the adapter alone (--lora-adapter-mode)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax.backends.base import ModelSpec, TrainBackend
from relax.backends.exact.low_rank import peft_config, peft_name
from relax.distributed.checkpoint_service.base import AdapterFacts, WeightManifest, WeightPublisher
from relax.distributed.checkpoint_service.checksums import raw_bytes, tensor_checksum

if TYPE_CHECKING:
    from torch import Tensor


class AdapterVersions:
    """What one training rank remembers between them: the newest version's bits, and what the adapter is added to.

    `publisher` None: a rank that takes part in the collective calls and publishes nothing. Memory: one copy of the
    adapter.
    """

    def __init__(self, model: ModelSpec, publisher: WeightPublisher | None) -> None:
        self._model, self._publisher = model, publisher
        self._base: dict[str, str] | None = None
        self._last: dict[str, Tensor] = {}
        self._since = 0  # the version that first had the bits of `_last`

    def weights_replaced(self) -> None:
        """A checkpoint was loaded: neither the frozen weights nor the adapter are those of before."""
        self._base, self._last = None, {}

    def publish(self, backend: TrainBackend, version: int) -> WeightManifest | None:
        """Publish the adapter as `version`; a rank without a publisher returns None. Collective."""
        assert self._model.lora is not None
        publishes = self._publisher is not None
        if self._base is None:  # the frozen weights stay as they are, so they are looked at once
            frozen = backend.weights("frozen")
            self._base = {name: tensor_checksum(tensor.cpu()) if publishes else "" for name, tensor in frozen}
        tensors = dict(backend.weights("adapters"))
        if self._publisher is None:
            return None
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        if not _same_bits(copies, self._last):
            self._since = version
        facts = AdapterFacts(peft_config(self._model.lora, copies, self._model.hf_path), self._base, self._since)
        manifest = self._publisher.publish(version, ((peft_name(n), t) for n, t in copies.items()), facts)
        self._last = copies
        return manifest


def _same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bits and not values: 0.0 and -0.0 make different products."""
    if one.keys() != other.keys():
        return False
    return all((raw_bytes(tensor) == raw_bytes(other[name])).all() for name, tensor in one.items())
