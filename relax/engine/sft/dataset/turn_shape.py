# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How a chat template opens and closes an assistant turn, read off its render of a dialogue made for this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.utils.errors import DataError

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]  # (messages, add_generation_prompt) -> text

QUESTION, ANSWER, NEXT = "relaxquestion", "relaxanswer", "relaxnext"


@dataclass(frozen=True)
class TurnShape:
    """`header` is what every assistant turn starts with; `generation_prompt` is the header that a model is given,
    which may go on (`<think>`). `end` closes a turn, without the white space behind it."""

    generation_prompt: str
    header: str
    end: str


def turn_shape(render: Render) -> TurnShape | None:
    """The shape, or None for a template that does not show a plain dialogue of user, assistant and user.

    The header is compared between an assistant turn that comes last, one that is history, and the generation prompt:
    some templates open a thought in some of them.
    """
    user = [{"role": "user", "content": QUESTION}]
    answered = [*user, {"role": "assistant", "content": ANSWER}]
    try:
        prompt, given = render(user, False), render(user, True)
        last = render(answered, False)
        history = render([*answered, {"role": "user", "content": NEXT}], False)
    except DataError:
        return None
    if not (given.startswith(prompt) and last.startswith(prompt) and history.startswith(prompt)):
        return None
    if last.count(ANSWER) != 1 or history.count(ANSWER) != 1 or history.count(NEXT) != 1:
        return None
    header_last, _, end_last = last[len(prompt) :].partition(ANSWER)
    header_history, _, rest = history[len(prompt) :].partition(ANSWER)
    generation_prompt = given[len(prompt) :]
    header = _common_start(generation_prompt or header_last, header_last, header_history)
    end = _common_start(end_last, rest.partition(NEXT)[0]).rstrip()
    return TurnShape(generation_prompt, header, end)


def _common_start(*texts: str) -> str:
    """The longest text that all of `texts` start with."""
    count = 0
    for characters in zip(*texts, strict=False):
        if len(set(characters)) > 1:
            break
        count += 1
    return texts[0][:count]
