# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Low-rank adapters that are sent by themselves, merged by the trainer's own function.

The engine computes with merged matrices, as after an update of the whole model; beside them it keeps the frozen
matrix of each adapter, and nothing else twice. The frozen weights are those it has loaded, so before the first merge
each is compared with the checksum of the trainer's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from relax.backends.exact.low_rank import A, B, adapted_matrix, merged_weight
from relax.backends.native.protocol import RequestError
from relax.distributed.checkpoint_service.base import AdapterFacts
from relax.distributed.checkpoint_service.checksums import tensor_checksum

OLD_STAY = "the old weights stay"


class MergedAdapters:
    """Frozen matrices of the adapters in force. `in_force()` gives the weights by name, merged or not."""

    def __init__(self, in_force: Callable[[], Mapping[str, Tensor]]) -> None:
        self._in_force = in_force
        self._frozen: dict[str, Tensor] = {}
        self._compared: Mapping[str, str] | None = None  # checksums that the frozen weights are known to have

    def forget(self) -> None:
        """Whole weights take the place of the merged ones."""
        self._frozen, self._compared = {}, None

    def check_shape(
        self, name: str, shape: tuple[int, ...], matrix: tuple[int, ...] | None, facts: AdapterFacts
    ) -> None:
        """Of A `[rank, in]` or B `[out, rank]` of a matrix `[out, in]`."""
        if matrix is None or len(matrix) != 2:
            raise RequestError(f"tensor {name!r} belongs to no matrix of this model; {OLD_STAY}")
        rank = int(facts.config["r"])
        expected = (rank, matrix[1]) if name.endswith(f"{A}.weight") else (matrix[0], rank)
        if shape != expected:
            raise RequestError(
                f"tensor {name!r} has shape {list(shape)}, an adapter of rank {rank} has {list(expected)}; {OLD_STAY}"
            )

    @torch.no_grad()
    def merge(self, tensors: Mapping[str, Tensor], facts: AdapterFacts) -> dict[str, Tensor]:
        """{matrix: W + scale * B A}. `tensors` have peft's names and `check_shape`d shapes.

        Raises `RequestError` for half an adapter, for other matrices than before, and for other frozen weights.
        """
        pairs: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            place = adapted_matrix(name)
            assert place is not None
            pairs.setdefault(place[0], {})[place[1]] = tensor
        halves = [name for name, pair in pairs.items() if len(pair) != 2]
        if halves:
            raise RequestError(f"end_weight_update: A or B of {halves[:3]} was not sent; {OLD_STAY}")
        if self._frozen and self._frozen.keys() != pairs.keys():
            others = sorted(self._frozen.keys() ^ pairs.keys())
            raise RequestError(f"end_weight_update: the adapter before this one had other matrices: {others[:3]}")
        self._compare(facts)
        state = self._in_force()
        frozen = self._frozen or {name: state[name].clone(memory_format=torch.contiguous_format) for name in pairs}
        merged = {}
        for name, pair in pairs.items():
            weight = frozen[name]
            merged[name] = merged_weight(weight, pair[A].to(weight.device), pair[B].to(weight.device), facts.scale)
        self._frozen = frozen
        return merged

    def _compare(self, facts: AdapterFacts) -> None:
        """The adapter belongs to the frozen weights here, each of them."""
        if self._compared == facts.base:
            return
        state = {**self._in_force(), **self._frozen}
        absent = sorted(set(facts.base) - set(state))
        other = [
            name for name, right in facts.base.items() if name in state and tensor_checksum(state[name].cpu()) != right
        ]
        if absent or other:
            found = absent + other
            raise RequestError(
                "end_weight_update: the trainer adds the adapter to other frozen weights than this engine has loaded: "
                f"{len(found)} of {len(facts.base)} tensors differ, such as {found[:3]}. Engines start from "
                f"--hf-checkpoint: train from it too, or send merged weights with --lora-merge-mode; {OLD_STAY}"
            )
        self._compared = dict(facts.base)


def facts_of(data: Any) -> AdapterFacts:
    """From the key `adapter` of a request."""
    try:
        return AdapterFacts.from_json(data)
    except ValueError as error:
        raise RequestError(f"adapter: {error}; {OLD_STAY}") from error
