# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whether a chat template shows what is to be trained: what it drops would train silence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from relax.engine.sft.dataset.sample import CanonicalSample, answer_texts, reasoning_text
from relax.utils.errors import DataError

log = logging.getLogger(__name__)

_told: set[str] = set()


def check_shown(sample: CanonicalSample, text: str, spans: Mapping[int, tuple[int, int]]) -> None:
    """Raise DataError unless each trained message (place -> characters) shows its answer, its calls and its thought.

    A thought before the last ordinary user message may be compressed away: that is what such templates are for.
    Without `preserve_thinking` it is then not trained. Text beside tool calls that a template leaves out is told once.
    """
    for place, (start, end) in spans.items():
        message, shown = sample.messages[place], text[start:end]
        missing = _missing_call(message, shown)
        if missing:
            raise DataError(f"the chat template does not show {missing} of message {place}", where=sample.where)
        thought = reasoning_text(message)
        if any(answer not in shown for answer in answer_texts(message)):
            if not message.get("tool_calls"):
                raise DataError(f"the chat template does not show the text of message {place}", where=sample.where)
            _tell(f"{sample.where}: the chat template leaves out the text of message {place} beside its tool calls")
        if thought and thought not in shown:
            if place > sample.last_query:
                raise DataError(
                    f"the chat template does not show the reasoning of message {place}, so it would not be trained; "
                    "write it into the content, or give a template that shows it (--chat-template FILE)",
                    where=sample.where,
                )
            _tell(
                f"{sample.where}: the reasoning of message {place} is history that the chat template leaves out; its "
                "answer is trained without it"
            )


def _missing_call(message: Mapping[str, Any], shown: str) -> str | None:
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name not in shown:
            return f"the tool call {name!r}"
    return None


def _tell(line: str) -> None:
    """Each kind of line once in a process; the row is that of the first."""
    kind = line.partition(": ")[2].translate(str.maketrans("", "", "0123456789"))
    if kind not in _told:
        _told.add(kind)
        log.warning("%s (told once)", line)
