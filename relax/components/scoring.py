# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From groups on the bus to one column of log-probs on the bus, computed by the ranks of a backend together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from relax.backends.base import RankInfo, TrainBackend
from relax.components.messages import ForwardReport, ReleasedGroup, partition_of
from relax.components.training_data import BatchSettings, make_scoring_plan, read_parts
from relax.distributed.bus.base import Block, Bus
from relax.schedule.clock import Clock

Blocking = Callable[..., Awaitable[Any]]  # runs a function where it may block


async def score_groups(
    rollout_id: int,
    groups: tuple[ReleasedGroup, ...],
    *,
    table: str,
    column: str,
    tag: str,
    backend: TrainBackend,
    info: RankInfo,
    settings: BatchSettings,
    bus: Bus,
    clock: Clock,
    deadline_s: float,
    blocking: Blocking,
) -> ForwardReport:
    """Write `table` for this rank's groups under the weights `tag`; all ranks together write all of them."""
    waited = clock.now()
    plan = make_scoring_plan(groups, settings, info.dp_size)
    (part,) = await read_parts(bus, rollout_id, groups, (), plan, info.dp_rank, deadline_s=deadline_s)
    started = clock.now()
    scores = await blocking(backend.score, part, frozenset({"log_probs"}), tag)
    by_group: dict[int, list[np.ndarray]] = {}
    for sequence in (s for micro in part.micro_batches for s in micro):
        by_group.setdefault(sequence.group, []).append(scores[sequence.uid]["log_probs"])
    blocks = [Block(uid, {column: np.concatenate(columns)}) for uid, columns in sorted(by_group.items())]
    await bus.put(partition_of(rollout_id), table, blocks)
    return ForwardReport(started - waited, clock.now() - started)
