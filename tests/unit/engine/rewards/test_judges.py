# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Judges: what an engine is asked, the queue, retries, and the reward that is made of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relax.backends.engine_client import EngineRefused
from relax.components.genrm import GenRM
from relax.engine.rewards.judge_reward import judge_reward, problem_text, shown_answer
from relax.engine.rewards.judges import GenRMClient, Judge, JudgeRefused, Judges, set_judges
from relax.engine.rewards.score import RewardScorer
from relax.schedule.clock import RealClock
from relax.utils.errors import EngineLost
from relax.utils.types import Sample

SAMPLING = {"temperature": 0.1, "top_p": 1.0, "top_k": -1, "max_response_len": 16, "chat_template_kwargs": {}}
ASK = [{"role": "user", "content": "1 or 0?"}]


class Engine:
    """Answers `text` after `gate` opens; the first `failures` calls break."""

    def __init__(self, text: str = "1", *, failures: int = 0, gate: asyncio.Event | None = None) -> None:
        self.text, self.failures, self.gate = text, failures, gate
        self.asked: list[dict[str, Any]] = []
        self.running = self.most = 0

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/v1/chat/completions"
        self.asked.append(body)
        if len(self.asked) <= self.failures:
            raise EngineLost("the connection broke")
        if self.text == "refuse":
            raise EngineRefused("the prompt is too long", status=400)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.running -= 1
        return {"choices": [{"message": {"content": self.text}}]}

    async def info(self) -> None:
        if self.text == "dead":
            raise EngineLost("it is gone")

    async def close(self) -> None:
        return None


def judges(timeout_s: float = 5.0, concurrency: int = 4, **engines: Engine) -> Judges:
    return Judges(
        {"__default__": Judge(engines, SAMPLING)}, clock=RealClock(), timeout_s=timeout_s, attempts=3,
        concurrency=concurrency, seed=5,
    )  # fmt: skip


async def test_a_request_has_the_defaults_of_its_judge_and_its_own_words_win():
    engine = Engine("fine")
    found = judges(one=engine)
    assert await found.generate(ASK) == "fine"
    assert await found.generate(ASK, {"temperature": 0.7, "max_new_tokens": 3}) == "fine"
    first, second = engine.asked
    seeds = [first.pop("seed"), second.pop("seed")]
    assert first == {"messages": ASK, "temperature": 0.1, "top_p": 1.0, "max_tokens": 16}
    assert second == {"messages": ASK, "temperature": 0.7, "top_p": 1.0, "max_tokens": 3}
    assert seeds[0] != seeds[1]
    await found.generate(ASK)
    assert engine.asked[2]["seed"] == seeds[0]  # the same request has the same seed, whatever came between


async def test_at_most_so_many_are_in_flight_and_the_others_wait_for_the_idlest_engine():
    gate = asyncio.Event()
    engines = {"one": Engine(gate=gate), "two": Engine(gate=gate)}
    found = judges(concurrency=4, **engines)
    asking = [asyncio.create_task(found.generate(ASK)) for _ in range(7)]
    await asyncio.sleep(0.05)
    assert found.occupied() == 4
    assert found.waiting["__default__"] == 3
    assert [engine.running for engine in engines.values()] == [2, 2]
    gate.set()
    assert await asyncio.gather(*asking) == ["1"] * 7
    assert (found.occupied(), found.waiting["__default__"], found.counts["answered"]) == (0, 0, 7)


async def test_a_broken_connection_and_a_timeout_are_tried_again_and_then_told():
    assert await judges(one=Engine(failures=2)).generate(ASK) == "1"
    with pytest.raises(EngineLost, match=r"judge __default__ did not answer in 3 tries.*--genrm-timeout-s"):
        await judges(one=Engine(failures=3)).generate(ASK)
    hanging = judges(timeout_s=0.05, one=Engine(gate=asyncio.Event()))
    with pytest.raises(EngineLost, match=r"of at most 0\.05 s"):
        await hanging.generate(ASK)
    assert (hanging.counts["timeouts"], hanging.counts["failed"], hanging.occupied()) == (3, 1, 0)


async def test_what_cannot_be_answered_is_refused_with_its_status_and_not_tried_again():
    engine = Engine("refuse")
    for request, status, text in (
        ({"messages": []}, 422, "messages must be a list"),
        ({"messages": [{"role": "user"}]}, 422, "role and content"),
        ({"messages": ASK, "route_key": "maths"}, 400, "names no judge; known are __default__"),
        ({"messages": ASK}, 400, "the prompt is too long"),
    ):
        with pytest.raises(JudgeRefused, match=text) as error:
            await judges(one=engine).generate(**request)
        assert error.value.status == status
    assert len(engine.asked) == 1


async def test_a_request_names_one_of_several_judges():
    found = Judges(
        {"maths": Judge({"m": Engine("m")}, SAMPLING), "style": Judge({"s": Engine("s")}, SAMPLING)},
        clock=RealClock(), timeout_s=1, attempts=1, concurrency=1,
    )  # fmt: skip
    assert await found.generate(ASK, route_key="style") == "s"
    with pytest.raises(JudgeRefused, match="known are maths, style"):
        await found.generate(ASK)


async def test_the_role_starts_when_all_judges_answer_and_tells_its_state():
    with pytest.raises(EngineLost, match="judges do not answer: __default__ two: EngineLost: it is gone"):
        await GenRM(judges(one=Engine(), two=Engine("dead"))).start()
    role = GenRM(judges(one=Engine("yes")))
    await role.start()
    try:
        assert await GenRMClient().generate(ASK) == "yes"
        assert await role.generate(ASK) == {"response": "yes"}
        assert await role.health() == {"__default__": {"one": "healthy"}}
        told = await role.metrics()
        assert (told["num_engines"], told["ready_engines"], told["answered"], told["occupied"]) == (1, 1, 2, 0)
    finally:
        await role.stop()
    with pytest.raises(JudgeRefused, match="this process has no judge"):
        await GenRMClient().generate(ASK)


@pytest.mark.parametrize(("text", "score"), [("1", 1.0), (" 1\n", 1.0), ("0", 0.0), ("1.", 0.0), ("Yes, 1", 0.0)])
async def test_only_the_bare_digit_is_right(text, score):
    engine = Engine(text)
    set_judges(judges(one=engine))
    try:
        sample = Sample(group_index=0, index=0, prompt="What is 2 plus 3?", label="5")
        found = await judge_reward("I add. Answer: five", sample)
        assert found == {"score": score, "acc": score, "pred": text.strip()}
        (message,) = engine.asked[0]["messages"]
        for part in ("Problem: What is 2 plus 3?", "Reference answer: 5", "Student's answer: five\n"):
            assert part in message["content"]
        scorer = RewardScorer(rm_type="dapo-genrm")
        sample.response = "Answer: five"
        await scorer.score([sample])
        assert sample.reward == score
        assert sample.reward_parts == {"acc": score}
        await scorer.close()
    finally:
        set_judges(None)


async def test_a_judge_that_cannot_be_asked_is_a_reward_that_failed():
    set_judges(judges(one=Engine(failures=99)))
    scorer = RewardScorer(rm_type="dapo-genrm", on_failure="zero")
    try:
        sample = Sample(group_index=0, index=0, prompt="?", label="5", response="5")
        await scorer.score([sample])
        assert sample.reward == 0.0
        assert scorer.counts["errors"] == 1
        assert "did not answer" in sample.train_metadata["reward_error"]
    finally:
        set_judges(None)
        await scorer.close()


def test_what_a_judge_is_shown():
    assert shown_answer("Answer: 3 no, Answer: 5 ") == "5"
    assert shown_answer("x" * 500) == "x" * 300
    assert problem_text([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]) == "q"
    assert problem_text([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "t"}]}]) == "t"
