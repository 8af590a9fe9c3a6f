# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The form in which a chat template wants messages, found out by showing it some.

Most take text as a string and the arguments of a call as an object. Some older vision templates read typed parts only,
and DeepSeek-V3's puts the arguments' JSON into the text as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.engine.sft.dataset.turn_shape import QUESTION, Render
from relax.utils.errors import DataError

_CALL = {"type": "function", "id": "relaxcall", "function": {"name": "relaxname", "arguments": {"x": 1}}}


@dataclass(frozen=True)
class MessageForm:
    parts: bool = False  # text as [{"type": "text", "text": ...}]
    json_arguments: bool = False  # arguments of calls as JSON text

    def of(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message in this form, without what is no business of a template."""
        out = {name: value for name, value in message.items() if name != "learn"}
        if self.parts and isinstance(out.get("content"), str):
            out["content"] = [{"type": "text", "text": out["content"]}]
        if self.json_arguments and out.get("tool_calls"):
            out["tool_calls"] = [_with_json(call) for call in out["tool_calls"]]
        return out


def message_form(render: Render) -> MessageForm:
    """The first form that the template shows; the usual one when it shows none."""
    user: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    parts = not _shows(render, user, QUESTION) and _shows(render, [MessageForm(parts=True).of(user[0])], QUESTION)
    called = [*user, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
    told: Sequence[Mapping[str, Any]] = [MessageForm(parts=parts).of(message) for message in called]
    if _shows(render, told, "relaxname"):
        return MessageForm(parts)
    as_json = [MessageForm(parts, json_arguments=True).of(message) for message in called]
    return MessageForm(parts, json_arguments=_shows(render, as_json, "relaxname"))


def _shows(render: Render, messages: Sequence[Mapping[str, Any]], text: str) -> bool:
    try:
        return text in render(messages, False)
    except DataError:
        return False


def _with_json(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    out = dict(call)
    if isinstance(out.get("function"), Mapping):
        out["function"] = _with_json(out["function"])
    if isinstance(out.get("arguments"), Mapping):
        out["arguments"] = json.dumps(out["arguments"], ensure_ascii=False)
    return out
