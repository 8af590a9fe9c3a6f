# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The template argument `preserve_thinking` and its three states, for every patcher whose family knows it.

unset or null   decided for each sample by its patcher
true            thoughts of earlier turns stay in the whole render
false           the template's own compression
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relax.engine.sft.dataset.sample import CanonicalSample

KEY = "preserve_thinking"


def resolved_preserve_thinking(kwargs: Mapping[str, Any], automatic: bool, sample: CanonicalSample) -> dict[str, Any]:
    """A copy of the arguments in which `preserve_thinking` is true, false, or absent (the template's own default).

    `automatic` is the decision for unset and null. Raises ValueError for anything but true, false and null.
    """
    value = kwargs.get(KEY)
    if value is not None and not isinstance(value, bool):
        raise ValueError(
            f"{sample.where}: {KEY} must be true, false or null, got {value!r}; write a JSON boolean, such as "
            f"--apply-chat-template-kwargs '{{\"{KEY}\": true}}'"
        )
    resolved = {name: item for name, item in kwargs.items() if name != KEY}
    if value is not None:
        resolved[KEY] = value
    elif automatic:
        resolved[KEY] = True
    return resolved
