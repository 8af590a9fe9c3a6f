# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a teacher's engine is asked, what its answers become, and what happens when it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from relax.algorithms.distillation_options import DistillationOptions
from relax.components.messages import PRODUCERS, ReleasedGroup
from relax.components.teacher import EngineTeacher
from relax.data.columns import group_columns
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.schedule.clock import RealClock
from relax.utils.errors import EngineLost
from relax.utils.types import Sample


class Engine:
    """Gives token t at place p the log-prob -(p + t / 100)."""

    url = "http://teacher"

    def __init__(self, *, failures: int = 0, hangs: bool = False, shift: int = 0) -> None:
        self.asked: list[dict[str, Any]] = []
        self.failures, self.hangs, self.shift = failures, hangs, shift

    async def info(self) -> None:
        return None

    async def generate(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(payload)
        if self.hangs:
            await asyncio.sleep(60)
        if len(self.asked) <= self.failures:
            raise EngineLost("the connection broke")
        start = payload["logprob_start_len"]
        ids = payload["input_ids"][start:]
        entries = [[None if place == 0 else -(place + t / 100), t + self.shift, None] for place, t in enumerate(ids)]
        top = [None] + [[[-0.1, 7, None], [-0.2, 8, None]] for _ in ids[1:]]
        return {"text": "", "meta_info": {"input_token_logprobs": entries, "input_top_logprobs": top}}

    async def close(self) -> None:
        return None


async def scored(engine: Engine, **options):
    bus = LocalBus(PRODUCERS)
    samples = [
        Sample(
            group_index=3, index=index, tokens=[0, 1, *response], response_length=len(response),
            loss_mask=[1] * len(response), rollout_log_probs=[-1.0] * len(response),
            weight_versions=[0] * len(response), status=Sample.Status.COMPLETED,
        )
        for index, response in enumerate([[5, 6], [9]])
    ]  # fmt: skip
    block = Block(3, group_columns(samples, [0.0, 0.0], [0.0, 0.0]))
    await bus.put("train_0", "rollout", [block])
    teacher = EngineTeacher(
        engines=[engine], options=DistillationOptions(**options), bus=bus, clock=RealClock(), deadline_s=1.0,
        timeout_s=0.2,
    )  # fmt: skip
    await teacher.start()
    await teacher.score(0, (ReleasedGroup(3, (4, 3), block.digest, False),))
    rows = await bus.get("train_0", ("teacher",), [3], deadline_s=1.0)
    return rows["teacher"][3].columns


async def test_an_engine_prefills_each_sample_and_generates_nothing():
    engine = Engine()
    columns = await scored(engine)
    assert columns["teacher_logprobs"] == pytest.approx(np.array([-1.05, -2.06, -1.09]), abs=1e-6)
    assert [call["input_ids"] for call in engine.asked] == [[0, 1, 5, 6], [0, 1, 9]]
    assert {call["sampling_params"]["max_new_tokens"] for call in engine.asked} == {0}
    assert {call["logprob_start_len"] for call in engine.asked} == {1}


async def test_the_likeliest_ids_of_the_teacher_come_with_their_log_probs():
    engine = Engine()
    columns = await scored(engine, token_selection="teacher_topk", top_k=2)
    assert columns["at_ids"].tolist() == [[7, 8]] * 3
    assert columns["teacher_at_logprobs"] == pytest.approx(np.array([[-0.1, -0.2]] * 3))
    assert engine.asked[0]["top_logprobs_num"] == 2


async def test_a_broken_connection_is_tried_again_and_a_dead_teacher_is_named():
    assert len(await scored(Engine(failures=2))) == 1
    with pytest.raises(EngineLost, match=r"teacher at http://teacher did not score sample \(3, 0\) in 3 tries"):
        await scored(Engine(failures=99))
    with pytest.raises(EngineLost, match="--opd-teacher-timeout-s"):
        await scored(Engine(hangs=True))


async def test_scores_of_other_tokens_are_refused():
    with pytest.raises(EngineLost, match="other ids"):
        await scored(Engine(shift=1))
