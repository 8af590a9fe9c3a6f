# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""DeepEyes' reward (arXiv 2505.14362): a right answer, a penalty for a broken format, a bonus for tools that helped.

    --custom-rm-path examples.deepeyes.reward_deepeyes.reward_func --reward-key score

    score = 0.8 accuracy + 0.2 format + 1.2 tool
    accuracy  1 when `<answer>` agrees with the label, else 0
    format    0 when the tags are in order, else -1
    tool      1 when accuracy is 1 and at least one tool call was done, else 0

Agreement is that of texts, option letters or numbers. Other answers are wrong, unless DEEPEYES_JUDGE_BASE_URL names an
OpenAI-compatible service (`.../v1`): it is asked then (DEEPEYES_JUDGE_MODEL, gpt-4o; DEEPEYES_JUDGE_API_KEY;
DEEPEYES_JUDGE_TIMEOUT, 120 s).
"""

from __future__ import annotations

import json
import os
import re
import string
import urllib.request
from typing import Any

from relax.engine.rewards.answers import choice_letter, label_texts, tagged
from relax.engine.rewards.math_check import as_number
from relax.utils.types import Sample

ACCURACY, FORMAT, TOOL = 0.8, 0.2, 1.2
MAX_ANSWER = 1000  # characters; a longer answer tries to talk a judge round, and is wrong and ill-formed
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def reward_func(args: Any, sample: Sample, **kwargs: Any) -> dict[str, float]:
    """See the module. Blocks while a judge thinks."""
    answer = tagged(sample.response.rpartition("</think>")[2])
    well_formed = in_order(sample, answer)
    right = answer is not None and len(answer) < MAX_ANSWER and agrees(answer, sample)
    used = sample.metadata.get("deepeyes", {}).get("tool_calls", 0) > 0
    accuracy, format_score, tool = float(right), 0.0 if well_formed else -1.0, float(right and used)
    score = ACCURACY * accuracy + FORMAT * format_score + TOOL * tool
    return {"score": score, "accuracy": accuracy, "format": format_score, "tool": tool}


def in_order(sample: Sample, answer: str | None) -> bool:
    """One short answer, thinking and calls closed, no call that failed."""
    text = sample.response
    thinks = text.count("</think>") - text.count("<think>")
    opened = isinstance(sample.prompt, str) and sample.prompt.rstrip().endswith("<think>")  # by the template
    closed = text.count("<tool_call>") == text.count("</tool_call>") and text.count("<answer>") == 1
    failed = sample.metadata.get("deepeyes", {}).get("tool_errors", 0)
    return bool(answer) and len(answer) < MAX_ANSWER and closed and thinks == int(opened) and not failed


def agrees(answer: str, sample: Sample) -> bool:
    """With any text of the label."""
    golds = [tagged(text) or text for text in label_texts(sample.label)]
    return any(same(answer, gold) for gold in golds) or (bool(golds) and judged(answer, golds[0], sample))


def same(answer: str, gold: str) -> bool:
    """Equal as text without case and punctuation, as the letter of an option, or as a number."""
    if plain(answer) == plain(gold) != "":
        return True
    letter = choice_letter(gold)
    if letter is not None and choice_letter(answer) is not None:
        return letter == choice_letter(answer)
    left, right = as_number(answer), as_number(gold)
    return left is not None and left == right


def plain(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def judged(answer: str, gold: str, sample: Sample) -> bool:
    """What the judge says, where there is one. A judge that cannot be asked is an error: the reward fails."""
    base = os.environ.get("DEEPEYES_JUDGE_BASE_URL")
    if not base:
        return False
    question = sample.prompt if isinstance(sample.prompt, str) else json.dumps(sample.prompt)
    body = {
        "model": os.environ.get("DEEPEYES_JUDGE_MODEL", "gpt-4o"),
        "temperature": 0,
        "messages": [
            {"role": "system", "content": JUDGE},
            {"role": "user", "content": f"Question: {question}\nRight answer: {gold}\nGiven answer: {answer}"},
        ],
    }
    key = os.environ.get("DEEPEYES_JUDGE_API_KEY", "")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{base.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=float(os.environ.get("DEEPEYES_JUDGE_TIMEOUT", "120"))) as reply:
        text = json.load(reply)["choices"][0]["message"]["content"]
    verdict = re.findall(r"[01]", text.rpartition("</think>")[2])
    if not verdict:
        raise ValueError(f"the judge said neither 1 nor 0: {text[:200]!r}")
    return verdict[-1] == "1"


JUDGE = (
    "You compare a given answer with the right one. They agree when they mean the same for the question, whatever the "
    "wording. Say 1 when they agree and 0 when they do not, and nothing else."
)
