# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--rm-type dapo-genrm`: a judge says whether the final answer is the label, by 1 or 0.

The judge sees what follows the last "Answer:" of the response, or its last 300 characters. Only the bare text 1 counts
as right; anything else, an explanation included, is 0. A row's `metadata.genrm_route_key` names one of several judges.
"""

from __future__ import annotations

from typing import Any

from relax.engine.rewards.answers import label_texts
from relax.engine.rewards.judges import GenRMClient
from relax.utils.types import Sample

MARK = "Answer:"
LAST_CHARACTERS = 300
ROUTE_KEY = "genrm_route_key"  # of a row's metadata
PROMPT = """You compare a student's answer with the reference answer of a problem.
Problem: {problem}
Reference answer: {reference}
Student's answer: {answer}
Reply with 1 if both mean the same, else with 0. Reply with that digit alone."""


def shown_answer(response: str) -> str:
    """The part of a response that a judge is shown."""
    _, mark, after = response.rpartition(MARK)
    return after.strip() if mark else response.strip()[-LAST_CHARACTERS:]


def problem_text(prompt: Any) -> str:
    """The prompt as text; of a message list the last user message."""
    if isinstance(prompt, str):
        return prompt
    users = [message["content"] for message in prompt or () if message.get("role") == "user"]
    content = users[-1] if users else ""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text")


async def judge_reward(response: str, sample: Sample) -> dict[str, Any]:
    """{"score", "acc", "pred"}; `pred` is the judge's own text."""
    text = PROMPT.format(
        problem=problem_text(sample.prompt),
        reference=" or ".join(label_texts(sample.label)),
        answer=shown_answer(response),
    )
    verdict = await GenRMClient().generate(
        [{"role": "user", "content": text}], route_key=sample.metadata.get(ROUTE_KEY)
    )
    right = verdict.strip() == "1"
    return {"score": float(right), "acc": float(right), "pred": verdict.strip()}
