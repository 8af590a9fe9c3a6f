# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which characters of a rendered dialogue are trained: from the end of the generation prompt to the end of the turn.

Two ways, each exact or refused:

By prefixes. The trained part of message i starts where the render of the messages before it, with generation prompt,
ends, and stops where the render of the messages up to it ends. That holds when both renders are prefixes of the whole
text. White space behind the token that closes the turn belongs to the next prompt.

By a probe. Templates that show a message otherwise once the dialogue has gone on (thoughts of earlier turns removed,
an empty thought added to the last) have no such prefixes. The whole dialogue is then rendered again with the message's
text replaced by a word that occurs nowhere: everything before the turn and behind it stays as it is, and where the
word stands tells where the turn is. What opens and closes a turn is known from `TurnShape`.

The results must lie in order, or the row is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.engine.sft.dataset.sample import is_ordinary_user
from relax.engine.sft.dataset.turn_shape import Render, TurnShape, common_start
from relax.utils.errors import DataError

Span = tuple[int, int]  # half-open range of characters

_PROBE = "relaxprobe"
_BEFORE = "relaxbefore"


class TemplateRefusal(DataError):
    """The chat template raises on this dialogue."""


class MaskError(DataError):
    """The trained part of a message cannot be told from the template's render without doubt."""


def supervised_spans(
    render: Render,
    messages: Sequence[Mapping[str, Any]],
    learned: Sequence[int],
    *,
    shape: Callable[[], TurnShape | None],
    special: Sequence[str],
    where: str,
) -> tuple[str, list[Span]]:
    """The whole text, and the trained range of each message of `learned` (places, ascending).

    `special` are the tokenizer's special tokens as text.
    """
    text = render(messages, False)
    turns = _Turns(render, list(messages), text, shape, tuple(special), where)
    spans = [(turns.start(place), turns.end(place)) for place in learned]
    floor = 0
    for place, (start, end) in zip(learned, spans, strict=True):
        if not floor <= start < end <= len(text):
            raise MaskError(
                f"the chat template gives message {place} the characters {start} to {end} of {len(text)}, but the "
                f"trained message before it ends at {floor}",
                where=where,
            )
        floor = end
    return text, spans


@dataclass(frozen=True)
class _Probe:
    """The whole dialogue with one message's text replaced, and where that text stands in it."""

    message: Mapping[str, Any]
    text: str
    at: int


class _Turns:
    """Start and end of assistant messages in one rendered dialogue."""

    def __init__(
        self,
        render: Render,
        messages: list[Mapping[str, Any]],
        text: str,
        shape: Callable[[], TurnShape | None],
        special: tuple[str, ...],
        where: str,
    ) -> None:
        self._render, self._messages, self._text = render, messages, text
        self._shape, self._special, self._where = shape, special, where
        self._probes: dict[int, _Probe] = {}

    def start(self, place: int) -> int:
        """The first trained character of a message."""
        prompt = self._prefix(place, generation_prompt=True)
        return len(prompt) if prompt is not None else self._probed_start(place)

    def end(self, place: int) -> int:
        """One behind the last trained character of a message."""
        last = place == len(self._messages) - 1
        whole = self._text if last else self._prefix(place + 1, generation_prompt=False)
        return self._closed(whole) if whole is not None else self._probed_end(place)

    # ----------------------------------------------------------------- prefixes

    def _prefix(self, count: int, *, generation_prompt: bool) -> str | None:
        """The render of the first messages if the whole text starts with it, else None."""
        try:
            prefix = self._render(self._messages[:count], generation_prompt)
        except TemplateRefusal:  # some templates want a user message, or roles in turn; the whole dialogue has passed
            return None
        return prefix if self._text.startswith(prefix) else None

    def _closed(self, whole: str) -> int:
        """End of the turn that `whole` ends with, without what stands behind the token that closes it."""
        shape = self._shape()
        if shape is not None and shape.end and whole.endswith(shape.end + shape.behind):
            return len(whole) - len(shape.behind)
        bare = whole.rstrip()
        return len(bare) if bare.endswith(self._special) else len(whole)

    # ----------------------------------------------------------------- probes

    def _probed_start(self, place: int) -> int:
        shape, probe = self._known_shape(place), self._probe(place)
        before = probe.text[: probe.at]
        turn = before.rfind(shape.header) if shape.header else -1
        if turn < 0 or not self._header_is_of(place, shape):
            # The turn opens with nothing of its own, such as an answer right behind a tool's.
            if not self._text.startswith(before):
                raise self._doubt(place, "what stands before it changes with its text")
            return probe.at
        if self._text[:turn] != probe.text[:turn]:
            raise self._doubt(place, "what stands before it changes with its text")
        if not shape.generation_prompt:
            return turn  # nothing is given to the model: it writes the header itself
        given = common_start(shape.generation_prompt, self._text[turn:])
        if not given:
            raise self._doubt(place, f"its turn does not start as {shape.generation_prompt!r} does")
        return turn + len(given)

    def _probed_end(self, place: int) -> int:
        shape, probe = self._known_shape(place), self._probe(place)
        if not shape.end:
            return self._end_of_text(place, probe)
        if shape.end in json.dumps(self._messages[place].get("tool_calls") or [], ensure_ascii=False, default=str):
            raise self._doubt(place, f"its tool calls hold {shape.end!r}, which closes a turn")
        stop = probe.text.find(shape.end, probe.at)
        rest = probe.text[stop + len(shape.end) :]
        end = len(self._text) - len(rest)
        if stop < 0 or not self._text.endswith(rest) or not self._text[:end].endswith(shape.end):
            raise self._doubt(place, "what stands behind it changes with its text")
        return end

    def _end_of_text(self, place: int, probe: _Probe) -> int:
        """End of a turn that nothing closes: behind its text, if its text comes last."""
        rest = probe.text[probe.at + len(_PROBE) :]
        if self._messages[place].get("tool_calls") or not self._text.endswith(rest):
            raise self._doubt(place, "the template closes a turn with nothing that could be found")
        return len(self._text) - len(rest)

    def _known_shape(self, place: int) -> TurnShape:
        shape = self._shape()
        if shape is None:
            raise self._doubt(place, "it does not show a plain dialogue of user, assistant and user either")
        return shape

    def _probe(self, place: int) -> _Probe:
        if place not in self._probes:
            message = self._messages[place]
            for probe in (_with_text(message, _PROBE), _with_call_name(message, _PROBE)):
                text = self._render(self._replaced({place: probe}), False) if probe is not None else ""
                if probe is not None and text.count(_PROBE) == 1:
                    self._probes[place] = _Probe(probe, text, text.find(_PROBE))
                    break
            else:
                raise self._doubt(place, "it does not show the message's text once")
        return self._probes[place]

    def _header_is_of(self, place: int, shape: TurnShape) -> bool:
        """Whether the last header before the message's text stands behind the text of the message before it."""
        if place == 0:
            return True
        earlier = self._messages[place - 1]
        wrapped = earlier.get("role") == "user" and not is_ordinary_user(earlier)
        marker = f"<tool_response>{_BEFORE}</tool_response>" if wrapped else _BEFORE
        changes = {place - 1: _with_text(earlier, marker), place: self._probe(place).message}
        both = self._render(self._replaced(changes), False)
        if both.count(_BEFORE) != 1 or both.count(_PROBE) != 1:
            raise self._doubt(place, "it does not show the text of the message before it once")
        return both.rfind(shape.header, 0, both.find(_PROBE)) > both.find(_BEFORE)

    def _replaced(self, changes: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [changes.get(place, message) for place, message in enumerate(self._messages)]

    def _doubt(self, place: int, reason: str) -> MaskError:
        return MaskError(
            f"the chat template renders message {place} otherwise when the dialogue goes on, and where it is trained "
            f"cannot be told: {reason}. Give a template whose render of the first messages is the start of the whole "
            "(--chat-template FILE), or set learn to false on this message",
            where=self._where,
        )


def _with_text(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The message with this text and no thought."""
    return {name: value for name, value in message.items() if name not in ("content", "reasoning_content")} | {
        "content": text
    }


def _with_call_name(message: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The message whose first tool call has this name; None without calls. For templates that then show no text."""
    calls = list(message.get("tool_calls") or [])
    if not calls or not isinstance(calls[0], Mapping):
        return None
    call = dict(calls[0])
    if isinstance(call.get("function"), Mapping):
        call["function"] = {**call["function"], "name": name}
    else:
        call["name"] = name
    return {**_with_text(message, ""), "tool_calls": [call, *calls[1:]]}
