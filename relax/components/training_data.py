# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the bus to the parts that a train backend takes: one rank's share of one rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax.backends.base import Part
from relax.components.messages import ReleasedGroup, partition_of
from relax.data.columns import TrainSequence, media_from_columns, sequences
from relax.distributed.bus.base import Bus
from relax.schedule.batch_plan import BatchPlan, plan_batches, plan_groups


@dataclass(frozen=True)
class BatchSettings:
    """How a rollout is cut. `max_tokens` None makes static micro-batches of `micro_batch_size` samples."""

    group_size: int
    global_batch_size: int
    max_tokens: int | None
    micro_batch_size: int = 1


def make_plan(groups: Sequence[ReleasedGroup], settings: BatchSettings, dp_size: int) -> BatchPlan[tuple[int, int]]:
    """The batch plan over (group, place in the group), in uid order."""
    uids = [(g.group, place) for g in groups for place in range(len(g.lengths))]
    lengths = [length for g in groups for length in g.lengths]
    return plan_batches(
        uids,
        lengths,
        group_size=settings.group_size,
        global_batch_size=settings.global_batch_size,
        dp_size=dp_size,
        max_tokens=settings.max_tokens,
        micro_batch_size=settings.micro_batch_size,
        group_sizes=[len(g.lengths) for g in groups],
    )


def make_scoring_plan(
    groups: Sequence[ReleasedGroup], settings: BatchSettings, dp_size: int
) -> BatchPlan[tuple[int, int]]:
    """One pass over the rollout in which a rank takes whole groups, because it writes whole rows."""
    return plan_groups(
        [[((g.group, place), length) for place, length in enumerate(g.lengths)] for g in groups],
        dp_size=dp_size,
        max_tokens=settings.max_tokens,
        micro_batch_size=settings.micro_batch_size,
    )


async def read_parts(
    bus: Bus,
    rollout_id: int,
    groups: Sequence[ReleasedGroup],
    tables: Sequence[str],
    plan: BatchPlan[tuple[int, int]],
    dp_rank: int,
    *,
    deadline_s: float,
) -> list[Part]:
    """One part for each step of the plan, holding this rank's micro-batches. Only groups in its share are read."""
    mine = [step[dp_rank] for step in plan.steps]
    wanted = sorted({group for step in mine for micro in step for group, _ in micro})
    with_media = [g.group for g in groups if g.has_media and g.group in set(wanted)]
    partition = partition_of(rollout_id)
    rows = await bus.get(partition, ("rollout", *tables), wanted, deadline_s=deadline_s)
    media = await bus.get(partition, ("media",), with_media, deadline_s=deadline_s) if with_media else {"media": {}}
    found: dict[tuple[int, int], TrainSequence] = {}
    for group in wanted:
        features = media_from_columns(media["media"][group].columns) if group in media["media"] else []
        others: list[Mapping] = [rows[table][group].columns for table in tables]
        for place, sequence in enumerate(sequences(rows["rollout"][group].columns, *others, media=features)):
            found[(group, place)] = sequence
    return [Part(tuple(tuple(found[uid] for uid in micro) for micro in step)) for step in mine]
