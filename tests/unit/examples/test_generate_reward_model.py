# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The judge's examples are right, and its verdict is the reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.generate_reward_model import demo
from examples.generate_reward_model.judge import all_pairs, pairs
from examples.generate_reward_model.reward import judged_answer
from relax.config.machine import Machine
from relax.config.run import parse_args
from relax.engine.rewards.judges import Judge, Judges, set_judges
from relax.schedule.clock import RealClock
from relax.utils.types import Sample


def test_the_verdict_of_a_pair_is_whether_both_sides_are_equal() -> None:
    rows = [*pairs(2000, seed=0), *all_pairs()]
    for row in rows:
        label, _, rest = row["prompt"][0]["content"].partition("=")  # type: ignore[index]
        assert row["label"] == str(int(label == rest.removesuffix("?"))), row
    verdicts = [row["label"] for row in rows[:2000]]
    assert 0.35 < verdicts.count("1") / 2000 < 0.55  # 0.8 of the rows have a digit, of which 0.55 are the label
    assert len({row["prompt"][0]["content"] for row in rows[2000:]}) == 100  # type: ignore[index]


class Engine:
    """An engine that answers with one text and keeps what it was asked."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body["messages"])
        return {"choices": [{"message": {"content": self.text}}]}


@pytest.mark.parametrize(
    ("said", "status", "reward"),
    [("1", "COMPLETED", 1.0), ("0", "COMPLETED", 0.0), ("11", "COMPLETED", 0.0), ("1", "TRUNCATED", 0.0)],
)
async def test_the_reward_is_the_judges_verdict(said: str, status: str, reward: float) -> None:
    engine = Engine(said)
    judge = Judge({"one": engine}, {})  # type: ignore[dict-item]
    set_judges(Judges({"__default__": judge}, clock=RealClock(), timeout_s=5.0, attempts=1, concurrency=1))
    try:
        sample = Sample(label="7", response="1<|im_end|>", status=Sample.Status[status])
        assert await judged_answer(None, sample) == reward
    finally:
        set_judges(None)
    asked = [[{"role": "user", "content": "7=1?"}]]
    assert engine.asked == (asked if status == "COMPLETED" else [])  # what was cut is not shown


def test_the_command_asks_the_judge_and_not_the_rule(tmp_path: Path) -> None:
    from examples.quickstart.demo import parse

    options = parse(["--colocate", "--steps", "5", "--run-dir", str(tmp_path)])
    config = parse_args(demo.train_flags(options, tmp_path, tmp_path / "judge"), machine=Machine())
    assert config.reward.custom_rm_path == demo.JUDGE
    assert config.genrm.genrm_model_path == str(tmp_path / "judge")
