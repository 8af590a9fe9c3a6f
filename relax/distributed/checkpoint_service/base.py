# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weight versions and the transports that carry them (DCS, the distributed checkpoint service).

A weight *version* is the number of rollouts whose training it contains. A version is published by one *manifest*;
a receiver stages it, checks every checksum, and switches between two decode steps, or keeps what it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


ADAPTER = "adapter"  # in `WeightManifest.extra` and in bodies that announce a broadcast: `AdapterFacts` as JSON
ADAPTER_NAME = "relax_policy_lora"  # under which SGLang holds the newest version, and requests ask for it
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
class AdapterFacts:
    """What makes a low-rank adapter, published by itself, into the matrices of one version."""

    config: Mapping[str, Any]  # peft's adapter_config.json; `r` and `lora_alpha` give the scale
    base: Mapping[str, str]  # {HF name: checksum} of every frozen tensor that the trainer adds it to
    since: int  # the oldest version from which on the adapter's bits are these

    @property
    def scale(self) -> float:
        """Of B A, before it is added."""
        return float(self.config["lora_alpha"]) / int(self.config["r"])

    def stands_since(self, held: object, version: int) -> bool:
        """Whether weights of the version `held` are those of `version`, bit for bit."""
        return str(held) in map(str, range(self.since, version))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> AdapterFacts:
        """Raises `ValueError` when it is not what `to_json` gives."""
        try:
            facts = cls(dict(data["config"]), dict(data["base"]), int(data["since"]))
            _ = facts.scale
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"not the facts of an adapter: {error!r}") from error
        return facts


@dataclass(frozen=True)
class WeightManifest:
    """One published version. Never written for weights that hold a NaN.

    The tensors are all of the model's, or with `extra["adapter"]` those of an adapter alone, under peft's names.
    """

    version: int
    transport: str  # "shm" | "disk" | "gloo" | "nccl"
    folder: str | None  # for shm and disk: model.safetensors with the model's other files, or peft's two files
    tensors: tuple[TensorEntry, ...]
    num_bytes: int
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def adapter(self) -> AdapterFacts | None:
        """None: the version is whole."""
        return AdapterFacts.from_json(self.extra[ADAPTER]) if ADAPTER in self.extra else None

    @property
    def moved_bytes(self) -> int:
        """What an engine that holds the version before must be given: nothing, where an adapter stands still."""
        adapter = self.adapter
        return self.num_bytes if adapter is None or adapter.since == self.version else 0

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

    def publish(
        self, version: int, weights: Iterable[tuple[str, Tensor]], adapter: AdapterFacts | None = None
    ) -> WeightManifest:
        """Write or send a version. Raises `Divergence` naming the tensor when a value is not finite.

        With `adapter` the weights are those of an adapter alone.
        """
        ...

    def retire(self, before: int) -> None:
        """Free versions older than `before`; receivers have switched."""
        ...

    def close(self) -> None: ...
