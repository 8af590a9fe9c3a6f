# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weights of a published version into a rank's shards: what reference and actor_fwd take between rollouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from relax.backends.exact.low_rank import peft_name
from relax.backends.fsdp.optimizer import Shard
from relax.distributed.checkpoint_service.naming import THINKER, checkpoint_name
from relax.distributed.checkpoint_service.publishers import read_version
from relax.utils.errors import WeightSyncError

_FUSED = re.compile(r"^(.*\bmlp\.experts)\.(gate_up_proj|down_proj)$")


def take_published(folder: Path, shards: list[Shard]) -> None:
    """Copy `shards` from the version's file; nothing changes unless all of them are there in their shapes.

    Names are the trainer's, those that `naming.sglang_names` made of them, or peft's of an adapter.
    """
    _, tensors = read_version(folder)
    whole = {shard.name: find_tensor(shard.name, tensors) for shard in shards}
    wrong = []
    for shard in shards:
        found, wanted = whole[shard.name], list(shard.parameter.shape)
        if found is None or list(found.shape) != wanted:
            wrong.append(f"{shard.name}: {'absent' if found is None else list(found.shape)}, expected {wanted}")
    if wrong:
        raise WeightSyncError(f"{folder} does not hold this model's weights: {'; '.join(wrong[:8])}")
    with torch.no_grad():
        for shard in shards:
            _copy(shard, whole[shard.name])  # type: ignore[arg-type]


def _copy(shard: Shard, tensor: Tensor) -> None:
    parameter = shard.parameter
    if isinstance(parameter, DTensor):
        tensor = tensor.to(parameter.device)
        piece = distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
        tensor = piece.to_local()
    shard.master.data.copy_(tensor)
    shard.publish()


def find_tensor(name: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The tensor of a parameter, under its own name or fused from those of the experts; None: it is not there."""
    # an omni thinker goes by the name its engine knows, an adapter by peft's
    for published in (name, THINKER + checkpoint_name(name), peft_name(name)):
        if published in tensors:
            return tensors[published]
        fused = _FUSED.match(published)
        if fused and f"{fused[1]}.0.down_proj.weight" in tensors:
            return _fuse(fused[1], fused[2], tensors)
    return None


def _fuse(experts: str, kind: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """The fused tensor that `sglang_names` has split."""
    matrices = []
    while (key := f"{experts}.{len(matrices)}") and f"{key}.down_proj.weight" in tensors:
        if kind == "down_proj":
            matrices.append(tensors[f"{key}.down_proj.weight"])
        else:
            matrices.append(torch.cat([tensors[f"{key}.{half}_proj.weight"] for half in ("gate", "up")]))
    return torch.stack(matrices)
