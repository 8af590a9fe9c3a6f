# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How a chat template opens and closes an assistant turn, read off its render of a dialogue made for this."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.utils.errors import DataError

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]  # (messages, add_generation_prompt) -> text

QUESTION, ANSWER, NEXT = "relaxquestion", "relaxanswer", "relaxnext"
_ATOM = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{2,}\]|.", re.DOTALL)  # a token in brackets is whole, or one character


@dataclass(frozen=True)
class TurnShape:
    """`header` is what every assistant turn starts with; `generation_prompt` is the header that a model is given,
    which may go on (`<think>`). `end` closes a turn, without the white space behind it; `behind` follows it when the
    dialogue ends there."""

    generation_prompt: str
    header: str
    end: str
    behind: str


def turn_shape(render: Render) -> TurnShape | None:
    """The shape, or None for a template that does not show a plain dialogue of user, assistant and user.

    The header is compared between an assistant turn that comes last, one that is history, and the generation prompt:
    some templates open a thought in some of them.
    """
    user = [{"role": "user", "content": QUESTION}]
    answered = [*user, {"role": "assistant", "content": ANSWER}]
    try:
        texts = [
            render(user, False),
            render(user, True),
            render(answered, False),
            render([*answered, {"role": "user", "content": NEXT}], False),
        ]
    except DataError:
        return None
    if any(text.count(QUESTION) != 1 for text in texts) or any(text.count(ANSWER) != 1 for text in texts[2:]):
        return None
    if texts[3].count(NEXT) != 1:
        return None
    prompt, given, last, history = (text.partition(QUESTION)[2] for text in texts)
    closed = common_start(prompt, given, last, history)  # what closes the user's turn
    header_last, _, end_last = last[len(closed) :].partition(ANSWER)
    header_history, _, rest = history[len(closed) :].partition(ANSWER)
    generation_prompt = given[len(closed) :] if given != prompt else ""
    end = common_start(end_last, rest.partition(NEXT)[0]).rstrip()
    return TurnShape(
        generation_prompt,
        common_start(generation_prompt or header_last, header_last, header_history),
        end,
        end_last.removeprefix(end),
    )


def common_start(*texts: str) -> str:
    """What all of `texts` start with, with bracketed tokens whole: `<think>` and `<tool>` share nothing."""
    count = 0
    for atoms in zip(*(_ATOM.finditer(text) for text in texts), strict=False):
        if len({atom[0] for atom in atoms}) > 1:
            break
        count = atoms[0].end()
    return texts[0][:count]
