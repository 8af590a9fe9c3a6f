# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Samples survive a row of the bus bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from relax.components.sft_rows import row_columns, row_samples, unit_digest
from relax.data.columns import TrainSequence
from relax.distributed.bus.base import Block, decode_block, encode_block
from relax.utils.errors import InternalError
from relax.utils.types import MediaFeatures


def sample(group: int, place: int, prompt: int, response: int, media: tuple[MediaFeatures, ...] = ()) -> TrainSequence:
    random = np.random.default_rng(group * 10 + place)
    return TrainSequence(
        group=group,
        index=place,
        tokens=random.integers(0, 99, prompt + response).astype(np.int32),
        prompt_len=prompt,
        loss_mask=random.integers(0, 2, response).astype(np.uint8),
        columns={
            "loss_weight": random.random(response).astype(np.float32),
            "label": random.random((response, 3)).astype(np.float32),
        },
        media=media,
    )


def image(value: float) -> MediaFeatures:
    return MediaFeatures("image", f"{int(value):064x}", {"pixel_values": np.full((4, 6), value, np.float32)}, 1)


def test_samples_come_back_as_they_were_put() -> None:
    given = [sample(3, 0, 5, 4), sample(3, 1, 5, 1, (image(1),)), sample(9, 0, 1, 7, (image(2), image(1)))]
    block = decode_block(encode_block(Block(0, row_columns(given))))
    found = row_samples(block.columns)
    for old, new in zip(given, found, strict=True):
        assert (new.uid, new.group, new.index, new.prompt_len) == (old.uid, old.group, old.index, old.prompt_len)
        assert np.array_equal(new.tokens, old.tokens) and np.array_equal(new.loss_mask, old.loss_mask)
        assert new.columns.keys() == old.columns.keys()
        assert all(np.array_equal(new.columns[name], old.columns[name]) for name in old.columns)
        assert [item.sha256 for item in new.media] == [item.sha256 for item in old.media]
        for one, other in zip(new.media, old.media, strict=True):
            assert np.array_equal(one.tensors["pixel_values"], other.tensors["pixel_values"])
        assert unit_digest([new]) == unit_digest([old])


def test_a_digest_sees_every_token_mask_and_weight() -> None:
    digests = {unit_digest([sample(1, 0, 3, 4)])}
    for name in ("tokens", "loss_mask", "weight"):
        changed = sample(1, 0, 3, 4)
        array = {"tokens": changed.tokens, "loss_mask": changed.loss_mask, "weight": changed.columns["loss_weight"]}[
            name
        ]
        array[1] += 1
        digests.add(unit_digest([changed]))
    assert len(digests) == 4


def test_samples_of_one_row_have_the_same_columns() -> None:
    other = sample(2, 0, 3, 2)
    del other.columns["label"]
    with pytest.raises(InternalError, match="columns"):
        row_columns([sample(1, 0, 3, 2), other])


def test_a_rank_without_samples_gets_an_empty_row() -> None:
    assert row_samples(row_columns([])) == []
