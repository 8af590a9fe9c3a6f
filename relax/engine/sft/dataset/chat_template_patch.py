# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Repairs of chat templates for one supervised sample and one call: the dispatcher, and what a patcher is.

A patcher looks at the text of the effective template. It returns None for every template that is not of its model
family; else the template and arguments to render with. Patchers are pure: they change neither sample nor tokenizer
nor the mapping that they are given, and recognise what they have patched already. Exactly one patcher may recognise a
template; their order says nothing. Only the rendering of supervised samples goes through here: rollout, agent
sessions and engines render with the template as it is.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.engine.sft.dataset.sample import CanonicalSample

log = logging.getLogger(__name__)

TEMPLATE_KEY = "chat_template"  # the argument that carries a template


@dataclass(frozen=True)
class TemplatePatchResult:
    """What a patcher that recognised the template wants rendered. `changed`: the template is not the one it got."""

    template: str
    kwargs: Mapping[str, Any]
    patch_name: str
    changed: bool


TemplatePatcher = Callable[[CanonicalSample, str | None, Mapping[str, Any]], TemplatePatchResult | None]


def patched_template(
    sample: CanonicalSample, template: str | None, kwargs: Mapping[str, Any], patchers: Sequence[TemplatePatcher]
) -> tuple[str | None, dict[str, Any]]:
    """(template, arguments) to render `sample` with; both as given when no patcher recognises the template.

    A changed template is in the arguments too, under `chat_template`. Raises RuntimeError when several patchers
    recognise it, and what a patcher raises.
    """
    results = [result for patcher in patchers if (result := patcher(sample, template, kwargs)) is not None]
    if len(results) > 1:
        names = ", ".join(result.patch_name for result in results)
        raise RuntimeError(
            f"{sample.where}: several chat template patches recognise the same template: {names}; "
            "make what they look for exclude each other"
        )
    if not results:
        return template, dict(kwargs)
    result = results[0]
    resolved = dict(result.kwargs)
    if result.changed:
        resolved[TEMPLATE_KEY] = result.template
    _tell(result.patch_name, "patched" if result.changed else "native", repr(resolved.get("preserve_thinking")))
    return result.template, resolved


@functools.lru_cache(maxsize=256)
def _tell(name: str, state: str, preserve_thinking: str) -> None:
    """One line for each outcome in a process, not one for each sample."""
    log.info("sft chat template source=%s (%s) preserve_thinking=%s", name, state, preserve_thinking)
