# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the bus to the parts that a train backend takes: one rank's share of one rollout."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relax.backends.base import Part
from relax.components.messages import ReleasedGroup, partition_of
from relax.data.columns import TrainSequence, media_from_columns, media_places, sequences
from relax.distributed.bus.base import Block, Bus
from relax.schedule.batch_plan import BatchPlan, StreamedPlan, groups_of_step, plan_groups
from relax.utils.types import MediaFeatures

Uid = tuple[int, int]  # (group, place in the group)


@dataclass(frozen=True)
class BatchSettings:
    """How a rollout is cut. `max_tokens` None makes static micro-batches of `micro_batch_size` samples."""

    group_size: int
    global_batch_size: int
    max_tokens: int | None
    micro_batch_size: int = 1


def start_plan(settings: BatchSettings, dp_size: int) -> StreamedPlan[Uid]:
    """The batch plan of one rollout, to be extended by its groups in the order of training."""
    return StreamedPlan(
        groups_per_step=groups_of_step(settings.group_size, settings.global_batch_size),
        dp_size=dp_size,
        max_tokens=settings.max_tokens,
        micro_batch_size=settings.micro_batch_size,
    )


def plan_items(groups: Sequence[ReleasedGroup]) -> list[list[tuple[Uid, int]]]:
    """Each group as (uid, length) of its samples; a uid is (group, place in the group)."""
    return [[((g.group, place), length) for place, length in enumerate(g.lengths)] for g in groups]


def make_scoring_plan(groups: Sequence[ReleasedGroup], settings: BatchSettings, dp_size: int) -> BatchPlan[Uid]:
    """One pass over the rollout in which a rank takes whole groups, because it writes whole rows."""
    return plan_groups(
        plan_items(groups),
        dp_size=dp_size,
        max_tokens=settings.max_tokens,
        micro_batch_size=settings.micro_batch_size,
    )


async def read_parts(
    bus: Bus,
    rollout_id: int,
    groups: Sequence[ReleasedGroup],
    tables: Sequence[str],
    plan: BatchPlan[Uid],
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
    found: dict[Uid, TrainSequence] = {}
    for group in wanted:
        told = media["media"][group].columns if group in media["media"] else None
        items, places = (media_from_columns(told), media_places(told)) if told is not None else ([], [])
        others: list[Mapping] = [rows[table][group].columns for table in tables]
        split = sequences(rows["rollout"][group].columns, *others, media=items, places=places)
        found.update(((group, place), sequence) for place, sequence in enumerate(split))
    return [Part(tuple(tuple(found[uid] for uid in micro) for micro in step)) for step in mine]


def part_checksums(parts: Iterable[Part]) -> dict[str, dict[Uid, str]]:
    """{column: {uid: crc32 in hex}} of everything that the sequences are trained on, tokens and media included."""
    sums: dict[str, dict[Uid, str]] = {}
    media: dict[int, int] = {}  # id(item) -> crc32: the samples of a group share their items
    for sequence in (s for part in parts for micro in part.micro_batches for s in micro):
        columns = {"tokens": sequence.tokens, "loss_mask": sequence.loss_mask, **sequence.columns}
        for name, values in columns.items():
            sums.setdefault(name, {})[sequence.uid] = f"{zlib.crc32(np.ascontiguousarray(values)):08x}"
        if sequence.media:
            total = 0
            for item in sequence.media:
                if id(item) not in media:
                    media[id(item)] = _media_checksum(item)
                total = zlib.crc32(media[id(item)].to_bytes(4, "little"), total)
            sums.setdefault("media", {})[sequence.uid] = f"{total:08x}"
    return sums


def _media_checksum(item: MediaFeatures) -> int:
    total = zlib.crc32(f"{item.kind} {item.sha256} {item.num_tokens}".encode())
    for name in sorted(item.tensors):
        total = zlib.crc32(np.ascontiguousarray(item.tensors[name]), zlib.crc32(name.encode(), total))
    return total


def column_blocks(part: Part, scores: Mapping[Uid, Mapping[str, np.ndarray]], names: Mapping[str, str]) -> list[Block]:
    """Rows of a role's table, one a group of the part: `names` is {column: what `TrainBackend.score` calls it}."""
    by_group: dict[int, dict[str, list[np.ndarray]]] = {}
    for sequence in (s for micro in part.micro_batches for s in micro):
        columns = by_group.setdefault(sequence.group, {column: [] for column in names})
        for column, name in names.items():
            columns[column].append(scores[sequence.uid][name])
    return [
        Block(group, {column: np.concatenate(pieces) for column, pieces in columns.items()})
        for group, columns in sorted(by_group.items())
    ]
