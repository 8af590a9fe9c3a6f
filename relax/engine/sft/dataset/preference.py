# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows of two answers, of which one is preferred, in the layouts in use.

TRL, explicit prompt      `prompt` text or messages; `chosen`, `rejected` text or messages
TRL, implicit prompt      `chosen`, `rejected` whole dialogues; the prompt is the messages that both start with
UltraFeedback             `prompt` text, repeated as the first message of `chosen` and `rejected`
LLaMA-Factory             `conversations` messages; `chosen`, `rejected` one message each
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relax.engine.sft.dataset.conversations import mapped_messages
from relax.utils.errors import DataError

Messages = list[dict[str, Any]]


def preference_turns(
    prompt: Any, chosen: Any, rejected: Any, *, key_map: Mapping[str, str], input_key: str, where: str
) -> tuple[Messages, Messages, Messages]:
    """(prompt, chosen, rejected) messages. The prompt's assistant messages are not learned, those behind it are.

    `prompt` None stands for a row without such a column.
    """
    sides = {"chosen": chosen, "rejected": rejected}
    turns = {name: _turns(side, "assistant", key_map, where) for name, side in sides.items()}
    if prompt is None:
        texts = [name for name, side in sides.items() if isinstance(side, str)]
        if texts:
            raise DataError(
                f"SFT row missing prompt key {input_key!r} (--input-key): {texts[0]} is text, so the prompt cannot be "
                "told from it",
                where=where,
            )
        shared = _shared(turns["chosen"], turns["rejected"])
        answers = {name: messages[len(shared) :] for name, messages in turns.items()}
    else:
        shared = _turns(prompt, "user", key_map, where)
        answers = {name: _behind(shared, messages) for name, messages in turns.items()}
    for name, messages in answers.items():
        if not messages or messages[-1]["role"] != "assistant":
            raise DataError(f"{name} has no assistant message behind the prompt", where=where)
    if not shared:
        raise DataError("chosen and rejected start with different messages, so there is no prompt", where=where)
    unlearned = [{**message, "learn": False} if message["role"] == "assistant" else message for message in shared]
    return unlearned, answers["chosen"], answers["rejected"]


def _turns(value: Any, role: str, key_map: Mapping[str, str], where: str) -> Messages:
    """Messages of text (one message of `role`), of one message, or of a list of them."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return mapped_messages(value if isinstance(value, list) else [value], key_map, where)


def _shared(chosen: Messages, rejected: Messages) -> Messages:
    """Whole messages that both dialogues start with, never a part of one."""
    count = 0
    for one, other in zip(chosen, rejected, strict=False):
        if one != other:
            break
        count += 1
    return chosen[:count]


def _behind(prompt: Messages, messages: Messages) -> Messages:
    """The messages without a prompt that they repeat."""
    repeated = len(messages) > len(prompt) and all(
        (own["role"], own.get("content")) == (given["role"], given.get("content"))
        for own, given in zip(messages, prompt, strict=False)
    )
    return messages[len(prompt) :] if repeated else messages
