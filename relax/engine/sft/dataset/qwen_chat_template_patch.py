# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Qwen's history of thoughts: templates that show reasoning behind the last ordinary user message only.

In a dialogue with tools this removes the thought of an earlier assistant message that is to be trained, and leaves its
tool call. Templates of Qwen3.6 and later have a gate for it, `preserve_thinking`; earlier ones get that gate here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from relax.engine.sft.dataset.chat_template_patch import TemplatePatchResult
from relax.engine.sft.dataset.preserve_thinking import resolved_preserve_thinking
from relax.engine.sft.dataset.sample import CanonicalSample, has_embedded_reasoning, is_learned

PATCH_NAME = "qwen_history_thinking"

_LEGACY_GATE = "{%- if loop.index0 > ns.last_query_index %}"
_PATCHED_GATE = (
    "{%- if (preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > ns.last_query_index) %}"
)
# The gates of Qwen3.6 and of Qwen3.8, whose default is to preserve.
_NATIVE_GATES = (
    _PATCHED_GATE,
    "{%- if preserve_thinking is undefined or preserve_thinking is true or loop.index0 > ns.last_query_index %}",
)
_FAMILY = ("<|im_start|>", "last_query_index")  # what no other family's template has together
_USE = re.compile(r"\{[%{](?:(?![%}]\}).)*last_query_index(?:(?![%}]\}).)*[%}]\}", re.DOTALL)
_SET = re.compile(r"\{%-?\s*set\s+ns(?:\.last_query_index)?\s*=")  # where the index comes from


def try_patch_qwen_chat_template(
    sample: CanonicalSample, template: str | None, kwargs: Mapping[str, Any]
) -> TemplatePatchResult | None:
    """The template with a `preserve_thinking` gate, and the argument decided for this sample.

    None for other families, and for a template of this one without any history gate: it compresses nothing.
    Unset or null decides: true when an assistant message that is learned and has `</think>` in its text stands before
    the last ordinary user message. Raises RuntimeError for a Qwen template whose history gate is repeated or unknown,
    and ValueError for a `preserve_thinking` that is no boolean.
    """
    if not isinstance(template, str) or not all(mark in template for mark in _FAMILY):
        return None
    gates = _gates(template)
    if not gates:
        return None
    native = _is_native(template, gates, sample)
    resolved = resolved_preserve_thinking(kwargs, _history_is_trained(sample), sample)
    patched = template if native else template.replace(_LEGACY_GATE, _PATCHED_GATE)
    return TemplatePatchResult(patched, resolved, PATCH_NAME, changed=not native)


@functools.lru_cache(maxsize=64)
def _gates(template: str) -> tuple[str, ...]:
    """Every statement of the template that uses the index of the last ordinary user message."""
    return tuple(use[0] for use in _USE.finditer(template) if not _SET.match(use[0]))


def _is_native(template: str, gates: tuple[str, ...], sample: CanonicalSample) -> bool:
    """Whether the template's one history gate is a native one, else the old one."""
    if len(gates) == 1 and gates[0] in _NATIVE_GATES:
        return True
    if gates == (_LEGACY_GATE,) and "preserve_thinking" not in template:
        return False
    found = "; ".join(gates)
    raise RuntimeError(
        f"{sample.where}: the chat template looks like Qwen's, but its history gate is not the one that is known: "
        f"found {found}{' beside another use of preserve_thinking' if gates == (_LEGACY_GATE,) else ''}; expected "
        f"{_LEGACY_GATE} or {' or '.join(_NATIVE_GATES)}, once. Use the model's own template, or give a fixed one by "
        "--chat-template FILE"
    )


def _history_is_trained(sample: CanonicalSample) -> bool:
    earlier = sample.messages[: max(sample.last_query, 0)]
    return any(is_learned(message) and has_embedded_reasoning(message) for message in earlier)
