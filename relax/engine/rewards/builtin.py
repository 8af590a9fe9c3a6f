# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The built-in rewards of `--rm-type`: 1.0 for a right answer, 0.0 for a wrong one, unless stated otherwise.

Every function is `async (response, sample, equal) -> float | dict`. `equal(answer, gold)` is the mathematical
comparison; it may run in another process. Text comparisons take microseconds and run where they are called.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from relax.engine.rewards.answers import (
    boxed,
    choice_letter,
    final_text,
    label_text,
    label_texts,
    last_number,
    said,
    stated_answer,
    tagged,
)
from relax.engine.rewards.judge_reward import judge_reward
from relax.engine.rewards.math_check import as_number
from relax.utils.types import Sample

Equal = Callable[[str, str], Awaitable[bool]]
Score = float | dict[str, Any]


async def _any_equal(answer: str | None, golds: list[str], equal: Equal) -> float:
    if not answer:
        return 0.0
    for gold in golds:
        if await equal(answer, gold):
            return 1.0
    return 0.0


def _gold_answers(label: Any) -> list[str]:
    """Accepted answers; a label that holds a box or an `<answer>` tag, as solutions do, is reduced to its content."""
    golds = []
    for text in label_texts(label):
        inner = next((found for found in (boxed(text), tagged(text)) if found), text)
        golds.append(inner)
    return golds


async def math(response: str, sample: Sample, equal: Equal) -> float:
    """The stated answer (box, `<answer>`, "answer is", one short line) against the label, numeric or symbolic."""
    return await _any_equal(stated_answer(response), _gold_answers(sample.label), equal)


async def deepscaler(response: str, sample: Sample, equal: Equal) -> float:
    """`math` on the box after the thinking; a response that never ends its thinking is wrong."""
    if "</think>" not in response:
        return 0.0
    return await _any_equal(boxed(final_text(response)), _gold_answers(sample.label), equal)


async def dapo(response: str, sample: Sample, equal: Equal) -> dict[str, Any]:
    """{score, acc, pred}: the last "Answer: ..." line, or the last box where there is none; score is 1 or 0."""
    text = final_text(response)
    answer = said(text)
    answer = boxed(text) if answer is None else (answer if boxed(answer) is None else boxed(answer))
    score = await _any_equal(answer, _gold_answers(sample.label), equal)
    return {"score": score, "acc": score == 1.0, "pred": answer or ""}


async def gsm8k(response: str, sample: Sample, equal: Equal) -> float:
    """The number after the last `####`, in the last box, or the last one of the response, against the label's."""
    found = [_final_number(text) for text in (final_text(response), label_text(sample.label))]
    return float(found[0] is not None and found[0] == found[1])


def _final_number(text: str) -> Any:
    answer = text.rpartition("####")[2] if "####" in text else boxed(text) or text
    number = last_number(answer)
    return None if number is None else as_number(number.rstrip(","))


async def multiple_choice(response: str, sample: Sample, equal: Equal) -> float:
    """The option letter of the answer: `\\boxed{B}`, `<answer>B</answer>`, "answer is (B)", `B. One`, `(B)`."""
    answer = stated_answer(response)
    if answer is None:  # a longer response without a marked answer: its last line may be the option
        answer = final_text(response).rpartition("\n")[2]
    letter, gold = choice_letter(answer), choice_letter(label_text(sample.label))
    return float(letter is not None and letter == gold)


async def openr1mm(response: str, sample: Sample, equal: Equal) -> float:
    """Content of `<answer>...</answer>` against the label's: equal as text or as mathematics."""
    answer = tagged(final_text(response))
    if answer is None:
        answer = stated_answer(response)
    if not answer:
        return 0.0
    inner = boxed(answer)
    return await _any_equal(answer if inner is None else inner, _gold_answers(sample.label), equal)


async def exact_match(response: str, sample: Sample, equal: Equal) -> float:
    """The whole final text equals the label, spaces aside."""
    text = " ".join(final_text(response).split())
    return float(bool(text) and text in [" ".join(gold.split()) for gold in label_texts(sample.label)])


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _words(text: str) -> Counter[str]:
    return Counter(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


async def f1(response: str, sample: Sample, equal: Equal) -> float:
    """Harmonic mean of precision and recall over words, without case, punctuation and articles; best gold answer."""
    words = _words(tagged(response) or final_text(response))
    best = 0.0
    for gold in map(_words, label_texts(sample.label)):
        common = (words & gold).total()
        if common:
            best = max(best, 2.0 * common / (words.total() + gold.total()))
    return best


async def dapo_genrm(response: str, sample: Sample, equal: Equal) -> Score:
    """A judge model compares the final answer with the label."""
    return await judge_reward(response, sample)


async def random(response: str, sample: Sample, equal: Equal) -> float:
    """0.0 or 1.0 with equal chance, from the sample's identity: the same in every run and order."""
    identity = f"reward:{sample.group_index}:{sample.index}:{sample.attempt}"
    return float(hashlib.blake2b(identity.encode(), digest_size=1).digest()[0] & 1)


async def dummy(response: str, sample: Sample, equal: Equal) -> float:
    """Always 0.0: for runs whose score comes later or from elsewhere."""
    return 0.0


BUILT_IN: dict[str, Callable[[str, Sample, Equal], Awaitable[Score]]] = {  # --rm-type
    "math": math,
    "geo3k": math,
    "deepscaler": deepscaler,
    "dapo": dapo,
    "dapo-genrm": dapo_genrm,
    "gsm8k": gsm8k,
    "multiple_choice": multiple_choice,
    "gpqa": multiple_choice,
    "openr1mm": openr1mm,
    "exact_match": exact_match,
    "f1": f1,
    "random": random,
    "dummy": dummy,
}
BOXED_PREFIX = "boxed_"
REMOTE = "remote_rm"
DUMMY = "dummy"
SCORE_KEY = "score"  # the score of a built-in dict reward when --reward-key is not given


def known_names() -> list[str]:
    return [*sorted([*BUILT_IN, REMOTE]), f"{BOXED_PREFIX}<name>"]


def is_known(name: str) -> bool:
    return name == REMOTE or name.removeprefix(BOXED_PREFIX) in BUILT_IN


async def built_in_reward(name: str, sample: Sample, equal: Equal) -> Score:
    """Score one sample by a known name; `boxed_` extracts the box first, and without one the response is empty."""
    response = sample.response
    if name.startswith(BOXED_PREFIX):
        response = boxed(final_text(response)) or ""
    return await BUILT_IN[name.removeprefix(BOXED_PREFIX)](response, sample, equal)
