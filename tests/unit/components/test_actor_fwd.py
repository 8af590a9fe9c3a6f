# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Forward roles: several ranks write whole rows, and what they write is the model's log-prob."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from relax.backends.base import ModelSpec
from relax.backends.tiny.policy import WEIGHT_NAME
from relax.backends.tiny.train import TinyTrain
from relax.backends.tiny.weights import MemoryPublisher, WeightStore
from relax.components.actor_fwd import ForwardRole
from relax.components.messages import PRODUCERS, ReleasedGroup
from relax.components.training_data import BatchSettings
from relax.data.columns import group_columns
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.schedule.clock import RealClock
from relax.utils.types import Sample

TABLE = np.random.default_rng(1).normal(size=(8, 8))


def expected(tokens: list[int], table: np.ndarray = TABLE) -> list[float]:
    """Log-probs of all tokens after the first two."""
    out = []
    for last, token in itertools.pairwise(tokens[1:]):
        out.append(float(table[last, token] - np.log(np.exp(table[last]).sum())))
    return out


def role(bus: LocalBus, rank: int, dp_size: int, store: WeightStore | None = None) -> ForwardRole:
    return ForwardRole(
        name="actor_fwd",
        table="actor_fwd",
        column="old_logprobs",
        backend=TinyTrain(TABLE, store=store, dp_rank=rank, dp_size=dp_size),
        model=ModelSpec(Path("unused")),
        settings=BatchSettings(2, 2, 10),
        bus=bus,
        clock=RealClock(),
        deadline_s=1.0,
    )


async def released_groups(bus: LocalBus, groups: dict[int, list[list[int]]], index=lambda place: place):
    out = []
    for number, rows in groups.items():
        samples = [
            Sample(
                group_index=number,
                index=index(place),
                tokens=tokens,
                response_length=len(tokens) - 2,
                loss_mask=[1] * (len(tokens) - 2),
                rollout_log_probs=[0.0] * (len(tokens) - 2),
                weight_versions=[0] * (len(tokens) - 2),
                status=Sample.Status.COMPLETED,
            )
            for place, tokens in enumerate(rows)
        ]
        block = Block(number, group_columns(samples, [0.0] * len(rows), [0.0] * len(rows)))
        await bus.put("train_0", "rollout", [block])
        out.append(ReleasedGroup(number, tuple(map(len, rows)), block.digest, False))
    return tuple(out)


@pytest.mark.parametrize("dp_size", [1, 2, 3])
@pytest.mark.parametrize("fan_out", [False, True])
async def test_ranks_together_write_every_group_once_and_whole(dp_size: int, fan_out: bool):
    rng = np.random.default_rng(2)
    groups = {g: [rng.integers(0, 8, rng.integers(3, 9)).tolist() for _ in range(3)] for g in (2, 5, 6, 9)}
    bus = LocalBus(PRODUCERS)
    released = await released_groups(bus, groups, index=(lambda place: 0) if fan_out else (lambda place: place))
    for rank in range(dp_size):
        forward = role(bus, rank, dp_size)
        await forward.start()
        await forward.score(0, released)
        assert forward.step == 1
    rows = await bus.get("train_0", ("actor_fwd",), groups, deadline_s=0.1)
    for number, block in rows["actor_fwd"].items():
        right = [value for tokens in groups[number] for value in expected(tokens)]
        assert block.columns["old_logprobs"] == pytest.approx(np.float32(right), rel=1e-6)


async def test_a_loaded_version_is_what_scores():
    store, bus = WeightStore(), LocalBus(PRODUCERS)
    new = np.random.default_rng(3).normal(size=(8, 8))
    manifest = MemoryPublisher(store).publish(4, [(WEIGHT_NAME, torch.from_numpy(new))])
    released = await released_groups(bus, {1: [[1, 2, 3, 4]]})
    forward = role(bus, 0, 1, store)
    await forward.start()
    await forward.load_version(manifest)
    await forward.score(0, released)
    rows = await bus.get("train_0", ("actor_fwd",), [1], deadline_s=0.1)
    assert forward.version == 4
    assert rows["actor_fwd"][1].columns["old_logprobs"] == pytest.approx(expected([1, 2, 3, 4], new), rel=1e-6)
