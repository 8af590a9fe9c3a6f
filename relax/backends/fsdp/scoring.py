# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Log-probs and other columns of whole sequences, without a gradient."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from relax.backends.base import Part, ScoreSwitch
from relax.backends.fsdp.batches import PackedBatch, pack
from relax.backends.fsdp.forward import Forward, ForwardOptions, TrainingModel
from relax.utils.cores import CoreShare

Columns = dict[tuple[int, int], dict[str, np.ndarray]]  # {uid: {name: float32 [R]}}


def score_part(
    model: TrainingModel,
    part: Part,
    needs: frozenset[str],
    towers: Sequence[Collection[str]],
    options: ForwardOptions,
    *,
    shared_prefix: bool,
    cores: CoreShare,
    ahead: int = 0,
) -> Columns:
    """What `needs` names of every response token of the part.

    Args:
        ahead: depths of multi-token prediction that are needed.
        towers: for each micro-batch, the encoders that any rank uses.
    """

    def score_one(place: int) -> tuple[PackedBatch, Forward]:
        with torch.no_grad():
            batch = pack(model, part.micro_batches[place], shared_prefix=shared_prefix, ahead=ahead)
            return batch, model(batch, needs, towers[place], options)

    columns: Columns = {}
    with cores.working():
        for batch, found in cores.in_order(score_one, len(part.micro_batches)):
            _by_uid(columns, batch, {n: v for n, v in found._asdict().items() if n in needs and v is not None})
    return columns


def switched(options: ForwardOptions, switch: ScoreSwitch, device: str) -> ForwardOptions:
    """The options of a forward that differs from training in what `switch` names."""
    options = replace(options, top_p=switch.top_p, top_k=switch.top_k)
    if switch.temperature is not None:
        options = replace(options, temperature=switch.temperature)
    if switch.suppressed_ids is not None:
        options = replace(options, suppressed=id_tensor(switch.suppressed_ids, device))
    return options


def id_tensor(ids: Collection[int], device: str) -> Tensor | None:
    """Token ids as `ForwardOptions.suppressed` takes them."""
    return torch.tensor(sorted(ids), device=device) if ids else None


def _by_uid(columns: Columns, batch: PackedBatch, found: dict[str, Tensor]) -> None:
    arrays = {name: values.float().cpu().numpy() for name, values in found.items()}
    end = 0
    for uid, length in zip(batch.uids, batch.lengths, strict=True):
        start, end = end, end + length
        columns[uid] = {name: values[start:end].copy() for name, values in arrays.items()}
