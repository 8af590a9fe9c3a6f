# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--rm-type-infer`: the built-in reward that a label asks for, where it is beyond doubt."""

from __future__ import annotations

import re
from typing import Any

ZERO = "zero"  # of --rm-type-fallback: 0.0 whatever the response
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
_CHOICE = re.compile(r"<answer>\s*\(?[A-Za-z]\)?\.?\s*</answer>")


def inferred_name(label: Any) -> str | None:
    """`math` for a number, `multiple_choice` for `<answer>B</answer>`, None for anything else."""
    if isinstance(label, bool):
        return None
    if isinstance(label, (int, float)):
        return "math"
    text = label.strip() if isinstance(label, str) else ""
    if _NUMBER.fullmatch(text):
        return "math"
    return "multiple_choice" if _CHOICE.fullmatch(text) else None
