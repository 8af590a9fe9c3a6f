# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a teacher's engine is asked, what its answers become, and what happens when it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from relax.algorithms.distillation_options import DistillationOptions
from relax.backends.engine_client import EngineRefused, engine_info
from relax.components.engine_teacher import EngineTeacher
from relax.components.messages import PRODUCERS, ReleasedGroup
from relax.components.teacher_questions import Vocabulary, id_problem
from relax.data.columns import group_columns
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.schedule.clock import RealClock
from relax.utils.errors import ConfigError, EngineLost
from relax.utils.types import Sample


class Engine:
    """Gives token t at place p the log-prob -(p + t / 100), and reads every text as 4, 5."""

    url = "http://teacher"

    def __init__(
        self, *, failures: int = 0, hangs: bool = False, shift: int = 0, deaf: bool = False, **says: Any
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.failures, self.hangs, self.shift, self.deaf, self.says = failures, hangs, shift, deaf, says

    async def info(self) -> Any:
        if self.deaf:
            await asyncio.sleep(60)
        return engine_info(self.url, self.says)

    async def generate(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(payload)
        if self.hangs:
            await asyncio.sleep(60)
        if len(self.asked) <= self.failures:
            raise EngineLost("the connection broke")
        start = payload["logprob_start_len"]
        ids = payload.get("input_ids", [4, 5])[start:]
        entries = [[None if place == 0 else -(place + t / 100), t + self.shift, None] for place, t in enumerate(ids)]
        meta: dict[str, Any] = {"input_token_logprobs": entries}
        if "top_logprobs_num" in payload:
            meta["input_top_logprobs"] = [None] + [[[-0.1, 7, None], [-0.2, 8, None]] for _ in ids[1:]]
        if "token_ids_logprob" in payload:
            named = payload["token_ids_logprob"]
            meta["input_token_ids_logprobs"] = [
                None, *([[-place - t / 100, t, None] for t in row] for place, row in enumerate(named[1:], 1)),
            ]  # fmt: skip
        return {"text": "", "meta_info": meta}

    async def close(self) -> None:
        return None


STUDENT_IDS = np.array([[1, 2], [3, 4], [9, 6]], np.float32)  # of the three response tokens


async def scored(engine: Engine, *, vocabulary: Vocabulary | None = None, **options):
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
    await bus.put("train_0", "student", [Block(3, {"student_ids": STUDENT_IDS})])
    teacher = EngineTeacher(
        engines=[engine], options=DistillationOptions(**options), bus=bus, clock=RealClock(), deadline_s=1.0,
        timeout_s=0.2, flag="--opd-teacher-url", vocabulary=vocabulary,
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


async def test_the_students_ids_are_asked_for_at_each_position():
    engine = Engine(token_ids_per_position=True)
    columns = await scored(engine, token_selection="student_topk", top_k=2)
    assert columns["at_ids"].tolist() == [[1, 2], [3, 4], [9, 6]]
    right = [[-1.01, -1.02], [-2.03, -2.04], [-1.09, -1.06]]  # places 1 and 2 of the first sample, 1 of the second
    assert columns["teacher_at_logprobs"] == pytest.approx(np.array(right), abs=1e-6)
    # log-probs start at the prompt's last token, whose own list is not used
    assert [call["token_ids_logprob"] for call in engine.asked] == [[[1, 2], [1, 2], [3, 4]], [[9, 6], [9, 6]]]
    assert "top_logprobs_num" not in engine.asked[0]


async def test_a_union_is_the_students_ids_and_then_the_teachers():
    columns = await scored(Engine(token_ids_per_position=True), token_selection="union", top_k=2)
    assert columns["at_ids"].tolist() == [[1, 2, 7, 8], [3, 4, 7, 8], [9, 6, 7, 8]]
    assert columns["teacher_at_logprobs"][0] == pytest.approx([-1.01, -1.02, -0.1, -0.2])


async def test_an_engine_with_one_list_for_all_positions_is_refused_at_the_start():
    with pytest.raises(ConfigError, match=r"http://teacher \(--opd-teacher-url\) takes one token_ids_logprob"):
        await scored(Engine(), token_selection="union", top_k=2)


class OneList(Engine):
    """Answers every position with the ids of the first, as a server would that takes one list."""

    async def generate(self, payload: dict[str, Any]) -> dict[str, Any]:
        if "token_ids_logprob" in payload:
            rows = payload["token_ids_logprob"]
            payload = {**payload, "token_ids_logprob": [rows[0]] * len(rows)}
        return await super().generate(payload)


async def test_log_probs_at_other_ids_are_refused():
    with pytest.raises(EngineLost, match="other ids than those asked for"):
        await scored(OneList(token_ids_per_position=True), token_selection="student_topk", top_k=2)


async def test_a_teacher_that_does_not_answer_at_the_start_is_named_with_its_flag():
    with pytest.raises(EngineLost, match=r"http://teacher \(--opd-teacher-url\) is not there: no answer within 0.2 s"):
        await scored(Engine(deaf=True))


@pytest.mark.parametrize(
    ("student", "said"),
    [
        (Vocabulary(100, (4, 6)), r"has another tokenizer: it reads .* with id 5, not 6, at token 1"),
        (Vocabulary(100, (4, 5, 6)), "2 tokens, not 3"),
        (Vocabulary(200, (4, 5)), "knows 150 token ids, not 200: a teacher must share the token ids of"),
    ],
)
async def test_a_teacher_with_other_ids_is_refused_at_the_start(student, said):
    with pytest.raises(ConfigError, match=said):
        await scored(Engine(vocab_size=150), vocabulary=student)


async def test_a_teacher_with_these_ids_and_more_is_taken():
    await scored(Engine(vocab_size=150), vocabulary=Vocabulary(100, (4, 5)))
    assert id_problem(Vocabulary(100, (4, 5)), None, None) is None


class WithoutTokenizer(Engine):
    async def generate(self, payload: dict[str, Any]) -> dict[str, Any]:
        if "text" in payload:
            raise EngineRefused("text needs a tokenizer", status=400)
        return await super().generate(payload)


async def test_an_engine_without_a_tokenizer_is_taken_with_a_warning(caplog):
    await scored(WithoutTokenizer(), vocabulary=Vocabulary(100, (4, 6)))
    assert "token ids are not compared teacher=http://teacher reason=text needs a tokenizer" in caplog.text


async def test_a_broken_connection_is_tried_again_and_a_dead_teacher_is_named():
    assert len(await scored(Engine(failures=2))) == 1
    with pytest.raises(EngineLost, match=r"\(--opd-teacher-url\) did not score sample \(3, 0\) in 3 tries"):
        await scored(Engine(failures=99))
    with pytest.raises(EngineLost, match="--opd-teacher-timeout-s"):
        await scored(Engine(hangs=True))


async def test_scores_of_other_tokens_are_refused():
    with pytest.raises(EngineLost, match="other ids than those it was sent: id 6, not 5, at token 0"):
        await scored(Engine(shift=1))
