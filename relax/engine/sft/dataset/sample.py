# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One supervised row in its only form: every layout becomes a `CanonicalSample` before it is rendered.

A message is a mapping with `role` and `content` (text, or typed parts such as `{"type": "image"}`), and where the row
has them `tool_calls` (arguments as objects), `reasoning_content`, `name`, `tool_call_id` and `learn`. `learn` says
whether the tokens of an assistant message are trained; it is true unless the row says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

THINK_END = "</think>"
_TOOL_RESPONSE = ("<tool_response>", "</tool_response>")


@dataclass(frozen=True)
class CanonicalSample:
    """What a row gives, before tokenizer and media are asked. Nobody changes it, its messages or its metadata."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Any, ...] | None = None
    media: tuple[tuple[str, Any], ...] = ()  # (modality, value as the row has it) in order of appearance
    label: int | tuple[int, ...] | None = None  # of a classification row: a class, or the set of classes
    metadata: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    row: int = 0  # line of a .jsonl (from 1), row of a .parquet (from 0)

    @property
    def where(self) -> str:
        """`file:row`, for messages."""
        return f"{self.file}:{self.row}"

    @property
    def learned(self) -> tuple[int, ...]:
        """Places of the messages whose tokens are trained."""
        return tuple(place for place, message in enumerate(self.messages) if is_learned(message))

    @property
    def last_query(self) -> int:
        """Place of the last ordinary user message, -1 without one. A wrapped tool answer is no ordinary one."""
        places = [place for place, message in enumerate(self.messages) if is_ordinary_user(message)]
        return places[-1] if places else -1


def is_learned(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and message.get("learn", True) is True


def is_ordinary_user(message: Mapping[str, Any]) -> bool:
    """A user message, unless its whole text is one `<tool_response>...</tool_response>`."""
    if message.get("role") != "user":
        return False
    content = message.get("content")
    start, end = _TOOL_RESPONSE
    return not (isinstance(content, str) and content.strip().startswith(start) and content.strip().endswith(end))


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message, without its media parts and its reasoning field."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if part.get("type") == "text")


def has_embedded_reasoning(message: Mapping[str, Any]) -> bool:
    """Whether the text of a message holds the end of a thought."""
    return THINK_END in message_text(message)


def reasoning_text(message: Mapping[str, Any]) -> str:
    """The thought of an assistant message: its `reasoning_content`, else what stands before `</think>`; or ""."""
    field_text = message.get("reasoning_content")
    if isinstance(field_text, str) and field_text.strip():
        return field_text.strip()
    text = message_text(message)
    if THINK_END not in text:
        return ""
    return text.rpartition(THINK_END)[0].rpartition("<think>")[2].strip()


def answer_texts(message: Mapping[str, Any]) -> list[str]:
    """The pieces of an assistant message's text behind its thought; media stand between them."""
    content = message.get("content")
    pieces = (
        [content] if isinstance(content, str) else [p.get("text", "") for p in content or () if p["type"] == "text"]
    )
    bare = [piece.rpartition(THINK_END)[2].strip() for piece in pieces]
    return [piece for piece in bare if piece]
