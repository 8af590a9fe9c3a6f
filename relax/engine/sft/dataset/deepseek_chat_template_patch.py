# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF001 (DeepSeek writes its tokens with full-width bars)
"""DeepSeek-R1's thoughts: its template cuts everything up to `</think>` from every assistant message, the last too.

That suits a served history and leaves nothing to train of a thought. The gate added here keeps thoughts when
`preserve_thinking` is true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from relax.engine.sft.dataset.chat_template_patch import TemplatePatchResult
from relax.engine.sft.dataset.preserve_thinking import resolved_preserve_thinking
from relax.engine.sft.dataset.sample import CanonicalSample, has_embedded_reasoning, is_learned

PATCH_NAME = "deepseek_thinking"

_FAMILY = "<｜Assistant｜>"
_LEGACY_GATE = "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
_PATCHED_GATE = (
    "{% if '</think>' in content and not (preserve_thinking is defined and preserve_thinking is true) %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
)
_CUT = re.compile(r"\{%-?\s*set\s+content\s*=\s*content\.split\('</think>'")


def try_patch_deepseek_chat_template(
    sample: CanonicalSample, template: str | None, kwargs: Mapping[str, Any]
) -> TemplatePatchResult | None:
    """The template with a `preserve_thinking` gate around the cut; None for templates of other families or without it.

    Unset or null decides: true when any learned assistant message has `</think>` in its text. Raises RuntimeError for
    a cut that is repeated or not the known one, and ValueError for a `preserve_thinking` that is no boolean.
    """
    if not isinstance(template, str) or _FAMILY not in template or not _CUT.search(template):
        return None
    native = template.count(_PATCHED_GATE) == 1
    if len(_CUT.findall(template)) != 1 or not (native or template.count(_LEGACY_GATE) == 1):
        raise RuntimeError(
            f"{sample.where}: the chat template looks like DeepSeek-R1's, but the place where it cuts thoughts is not "
            f"the one that is known; expected {_LEGACY_GATE} once. Give a fixed template with --chat-template FILE"
        )
    trained = any(is_learned(message) and has_embedded_reasoning(message) for message in sample.messages)
    resolved = resolved_preserve_thinking(kwargs, trained, sample)
    patched = template if native else template.replace(_LEGACY_GATE, _PATCHED_GATE)
    return TemplatePatchResult(patched, resolved, PATCH_NAME, changed=not native)
