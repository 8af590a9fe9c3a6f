# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The student's likeliest ids, which a teacher must know before it is asked: the table `student` of the actor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from relax.backends.base import Part, RankInfo, TrainBackend
from relax.components.messages import ForwardReport, ReleasedGroup, partition_of
from relax.components.training_data import BatchSettings, column_blocks, make_scoring_plan, read_parts
from relax.distributed.bus.base import Bus
from relax.schedule.clock import Clock

STUDENT_TABLE, STUDENT_IDS = "student", "student_ids"


def with_column(part: Part, name: str, columns: Mapping[tuple[int, int], np.ndarray]) -> Part:
    """The part with one more column, given by uid."""
    return Part(
        tuple(
            tuple(replace(s, columns={**s.columns, name: columns[s.uid]}) for s in micro)
            for micro in part.micro_batches
        )
    )


async def write_student_ids(
    backend: TrainBackend,
    info: RankInfo,
    rollout_id: int,
    groups: tuple[ReleasedGroup, ...],
    *,
    settings: BatchSettings,
    bus: Bus,
    clock: Clock,
    deadline_s: float,
    blocking: Callable[..., Awaitable[Any]],
) -> ForwardReport:
    """Write the table for this rank's groups under the current weights; all ranks together write all of them."""
    waited = clock.now()
    plan = make_scoring_plan(groups, settings, info.dp_size)
    (part,) = await read_parts(bus, rollout_id, groups, (), plan, info.dp_rank, deadline_s=deadline_s)
    started = clock.now()
    scores = await blocking(backend.score, part, frozenset({"top_ids"}))
    blocks = column_blocks(part, scores, {STUDENT_IDS: "top_ids"})
    await bus.put(partition_of(rollout_id), STUDENT_TABLE, blocks)
    return ForwardReport(started - waited, clock.now() - started)
