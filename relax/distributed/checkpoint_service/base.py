# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weight versions and the transports that carry them (DCS, the distributed checkpoint service).

A weight *version* is the number of rollouts whose training it contains. A version is published by one *manifest*;
a receiver stages it, checks every checksum, and switches between two decode steps, or keeps what it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


DTYPE_BYTES = {  # safetensors' words
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    name: str  # HF name
    dtype: str  # safetensors' word: F32, BF16, ...
    shape: tuple[int, ...]
    checksum: str  # `checksums.checksum` of the raw little-endian bytes: "crc32:89abcdef"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class WeightManifest:
    """One published version. Never written for weights that hold a NaN."""

    version: int
    transport: str  # "shm" | "disk" | "gloo" | "nccl"
    folder: str | None  # holds model.safetensors (and config and tokenizer files) for shm and disk
    tensors: tuple[TensorEntry, ...]
    num_bytes: int
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WeightManifest:
        tensors = tuple(TensorEntry(t["name"], t["dtype"], tuple(t["shape"]), t["checksum"]) for t in data["tensors"])
        return cls(
            data["version"], data["transport"], data["folder"], tensors, data["num_bytes"], data.get("extra", {})
        )


class WeightPublisher(Protocol):
    """The sending side, on training rank 0 (every rank iterates the collective weight iterator)."""

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> WeightManifest:
        """Write or send a version. Raises `Divergence` naming the tensor when a value is not finite."""
        ...

    def retire(self, before: int) -> None:
        """Free versions older than `before`; receivers have switched."""
        ...

    def close(self) -> None: ...
