# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Columns found from the data where a short form does not name them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from relax.config.frozen import FrozenDict
from relax.utils.errors import ConfigError

PROMPT_COLUMNS = ("prompt", "messages", "input", "question", "problem")
LABEL_COLUMNS = ("label", "answer", "solution")
_NUMBER = re.compile(r"^[-+]?\d[\d,]*(\.\d+)?$")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def media_columns(keys: Mapping[str, str | None], columns: Sequence[str]) -> FrozenDict:
    """{modality: column}: a modality without a column gets that of its own name, else its plural or `<name>_key`."""
    return FrozenDict({kind: column or _media_column(kind, columns) for kind, column in keys.items()})


def _media_column(kind: str, columns: Sequence[str]) -> str:
    if kind in columns:
        return kind
    found = [name for name in (f"{kind}s", f"{kind}_key") if name in columns]
    if len(found) == 1:
        return found[0]
    problem = f"both {' and '.join(found)} could be it" if found else "none has its name"
    raise ConfigError(
        f"--multimodal-keys names {kind} without a column, and {problem}: columns are {', '.join(columns)}; "
        f'write --multimodal-keys \'{{"{kind}": "COLUMN"}}\''
    )


def prompt_column(columns: Sequence[str]) -> str:
    return _first(PROMPT_COLUMNS, columns, "the prompt", "--input-key")


def label_column(columns: Sequence[str]) -> str | None:
    return next((name for name in LABEL_COLUMNS if name in columns), None)


def _first(candidates: Sequence[str], columns: Sequence[str], what: str, flag: str) -> str:
    for name in candidates:
        if name in columns:
            return name
    raise ConfigError(f"no column looks like {what}: the data has {', '.join(columns)}; name it by {flag}")


def reward_of_label(label: Any) -> str:
    """The built-in reward that fits a label: a number is math, `<answer>X</answer>` multiple choice or openr1mm."""
    text = str(label).strip()
    answer = _ANSWER.fullmatch(text)
    if answer:
        return "multiple_choice" if re.fullmatch(r"[A-Za-z]", answer[1].strip()) else "openr1mm"
    if _NUMBER.match(text):
        return "math"
    raise ConfigError(f"no reward can be inferred from the label {text[:80]!r}: add --rm-type or --custom-rm-path")
