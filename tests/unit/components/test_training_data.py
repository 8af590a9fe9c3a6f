# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a rank reads from the bus: its share, joined by (group, place), media included."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from relax.components.messages import PRODUCERS, ReleasedGroup
from relax.components.training_data import (
    BatchSettings,
    make_scoring_plan,
    part_checksums,
    plan_items,
    read_parts,
    start_plan,
)
from relax.data.columns import group_columns, media_columns, media_places, shared_media
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.schedule.batch_plan import BatchPlan
from relax.utils.types import MediaFeatures, Sample

RNG = np.random.default_rng(0)
FEATURES = (MediaFeatures("image", "ab" * 32, {"pixel_values": np.arange(6, dtype=np.float32).reshape(2, 3)}, 2),)


def sample(group: int, index: int, length: int) -> Sample:
    tokens = [group, index, *range(100 * index, 100 * index + length)]
    return Sample(
        group_index=group,
        index=index,
        tokens=tokens,
        response_length=length,
        loss_mask=[1] * length,
        rollout_log_probs=[-float(token) for token in tokens[2:]],
        weight_versions=[0] * length,
        status=Sample.Status.COMPLETED,
    )


async def filled(sizes: dict[int, list[int]], *, media: tuple[int, ...] = (), indices=None):
    """A bus with `rollout`, `media` and `advantages` of groups {group: response lengths}, and what was released."""
    bus, released = LocalBus(PRODUCERS), []
    for group, lengths in sizes.items():
        places = indices or range(len(lengths))
        samples = [sample(group, index, length) for index, length in zip(places, lengths, strict=True)]
        block = Block(group, group_columns(samples, [0.0] * len(samples), [0.0] * len(samples)))
        await bus.put("train_2", "rollout", [block])
        values = np.arange(sum(lengths), dtype=np.float32) + 1000 * group
        await bus.put("train_2", "advantages", [Block(group, {"advantages": values, "loss_weight": values})])
        if group in media:
            await bus.put("train_2", "media", [Block(group, media_columns(FEATURES))])
        released.append(ReleasedGroup(group, tuple(n + 2 for n in lengths), block.digest, group in media))
    return bus, tuple(released)


def make_plan(groups, settings, dp_size) -> BatchPlan:
    """The plan of a rollout whose groups come all at once."""
    pieces = start_plan(settings, dp_size).extend(plan_items(groups), last=True)
    return BatchPlan(tuple(piece.ranks for piece in pieces))


def parts_of_ranks(bus, released, settings, dp_size, tables=("advantages",), plan_function=make_plan):
    async def read():
        plan = plan_function(released, settings, dp_size)
        return [await read_parts(bus, 2, released, tables, plan, rank, deadline_s=0.1) for rank in range(dp_size)]

    return read()


@pytest.mark.parametrize("dp_size", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [None, 9])
async def test_every_sample_is_read_once_with_its_own_columns_and_media(dp_size, max_tokens):
    sizes = {group: RNG.integers(1, 6, 3).tolist() for group in (3, 4, 7, 12)}
    bus, released = await filled(sizes, media=(4, 12))
    ranks = await parts_of_ranks(bus, released, BatchSettings(3, 6, max_tokens, 2), dp_size)
    assert {len(parts) for parts in ranks} == {2}  # 12 samples in steps of 6
    for step in range(2):
        assert len({len(parts[step].micro_batches) for parts in ranks}) == 1
    sequences = [s for parts in ranks for part in parts for micro in part.micro_batches for s in micro]
    assert Counter(s.uid for s in sequences) == Counter((g, i) for g in sizes for i in range(3))
    for s in sequences:
        group, index = s.uid
        first = sum(sizes[group][:index])
        assert s.tokens[:2].tolist() == [group, index]
        assert s.columns["advantages"].tolist() == [1000 * group + first + k for k in range(sizes[group][index])]
        assert s.columns["rollout_logprobs"].tolist() == [-float(t) for t in s.tokens[2:]]
        if group in (4, 12):
            (item,) = s.media
            assert (item.kind, item.sha256, item.num_tokens) == ("image", "ab" * 32, 2)
            assert (item.tensors["pixel_values"] == FEATURES[0].tensors["pixel_values"]).all()
        else:
            assert s.media == ()


async def test_samples_whose_later_turns_have_media_get_their_own_items():
    """Sample 0 has the prompt's picture alone, 1 another one behind it, 2 that of sample 1 twice."""
    one, two = FEATURES[0], MediaFeatures("image", "cd" * 32, {"pixel_values": np.ones((4, 3), np.float32)}, 4)
    items, places = shared_media([[one], [one, two], [one, two, two]])
    assert (items, places) == ((one, two), ((0,), (0, 1), (0, 1, 1)))
    bus, _ = await filled({3: [2, 1, 4]})
    await bus.put("train_2", "media", [Block(3, media_columns(items, places))])
    released = (ReleasedGroup(3, (4, 3, 6), "", True),)
    ((part,),) = await parts_of_ranks(bus, released, BatchSettings(1, 3, None, 3), 1)
    sequences = sorted((s for micro in part.micro_batches for s in micro), key=lambda s: s.uid)
    assert [[item.sha256[:2] for item in s.media] for s in sequences] == [["ab"], ["ab", "cd"], ["ab", "cd", "cd"]]
    assert sequences[2].media[1].tensors["pixel_values"].shape == (4, 3)
    sums = part_checksums([part])["media"]
    assert len(set(sums.values())) == 3


def test_samples_with_the_same_media_need_no_places():
    assert shared_media([FEATURES, FEATURES]) == (FEATURES, ())
    assert shared_media([[], []]) == ((), ())
    assert media_places(media_columns(FEATURES)) == []


async def test_steps_take_groups_in_uid_order_and_hold_them_whole():
    bus, released = await filled({1: [1, 1], 2: [1, 1], 5: [1, 1]})
    ranks = await parts_of_ranks(bus, released, BatchSettings(2, 4, None, 4), 1)
    groups = [[s.group for micro in part.micro_batches for s in micro] for part in ranks[0]]
    assert groups == [[1, 1, 2, 2], [5, 5]]


async def test_samples_of_one_call_with_equal_index_keep_their_own_rows():
    bus, released = await filled({1: [2, 3, 1], 2: [1, 1, 1]}, indices=[0, 0, 1])
    ranks = await parts_of_ranks(bus, released, BatchSettings(2, 4, None, 8), 1)
    sequences = [s for micro in ranks[0][0].micro_batches for s in micro]
    assert [s.uid for s in sequences] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert [s.index for s in sequences] == [0, 0, 1, 0, 0, 1]
    assert [len(s.tokens) - s.prompt_len for s in sequences] == [2, 3, 1, 1, 1, 1]


@pytest.mark.parametrize("dp_size", [1, 2, 3, 5])
async def test_a_scoring_plan_gives_each_rank_whole_groups(dp_size):
    sizes = {group: RNG.integers(1, 9, 4).tolist() for group in (1, 2, 3, 8)}
    _, released = await filled(sizes)
    plan = make_scoring_plan(released, BatchSettings(4, 4, 12), dp_size)
    ((*ranks,),) = plan.steps
    assert len({len(micro) for micro in ranks}) == 1
    owners = {}
    for rank, micro_batches in enumerate(ranks):
        for group, _ in (uid for micro in micro_batches for uid in micro):
            assert owners.setdefault(group, rank) == rank
    assert Counter(uid for rank in ranks for micro in rank for uid in micro) == Counter(
        (group, place) for group in sizes for place in range(4)
    )
    lengths = {(g.group, place): n for g in released for place, n in enumerate(g.lengths)}
    assert all(
        sum(lengths[uid] for uid in micro) <= 12 or len(micro) == 1 for rank in ranks for micro in rank if micro
    )


async def test_only_the_groups_of_the_share_are_waited_for():
    bus, released = await filled({1: [1], 2: [1]})
    missing = ReleasedGroup(3, (3,), "d", False)
    plan = make_plan((*released, missing), BatchSettings(1, 3, None, 1), 3)
    part = (await read_parts(bus, 2, (*released, missing), (), plan, 0, deadline_s=0.01))[0]
    assert [s.group for micro in part.micro_batches for s in micro] == [1]
    with pytest.raises(Exception, match="uids 3"):
        await asyncio.wait_for(read_parts(bus, 2, (*released, missing), (), plan, 2, deadline_s=0.01), 5)
