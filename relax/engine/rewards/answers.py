# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where the final answer stands in a response. Pure text; nothing is evaluated."""

from __future__ import annotations

import re
from typing import Any

_END_TOKENS = re.compile(r"(?:\s*(?:<\|[^|<>\s]+\|>|</s>|<eos>|<end_of_turn>))+\s*$")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_SAID = re.compile(r"(?i:answer)\s*(?:is|:|=)\s*:?\s*(.+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
LAST_RESORT_LENGTH = 100  # characters of a one-line response that may be the answer itself


def final_text(response: str) -> str:
    """The response without its thinking and without the special tokens that end it."""
    return _END_TOKENS.sub("", response.rpartition("</think>")[2]).strip()


def label_text(label: Any) -> str:
    """A label of any type as text; whole floats lose their point, so that 34.0 is "34"."""
    if isinstance(label, bool) or not isinstance(label, float) or not label.is_integer():
        return "" if label is None else str(label).strip()
    return str(int(label))


def label_texts(label: Any) -> list[str]:
    """All accepted answers: a list label accepts any of its items."""
    items = label if isinstance(label, (list, tuple, set)) else [label]
    return [text for text in map(label_text, items) if text]


def boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`, `\boxed 5` or `\fbox{...}`; None without one; "" when it is empty."""
    found = list(_BOX.finditer(text))
    if not found:
        return None
    start = found[-1].end()
    if not text.startswith("{", start):
        word = re.match(r"[^\s$.,;]+", text[start:])
        return word.group(0) if word else ""
    depth = 0
    for place in range(start, len(text)):
        escaped = place > 0 and text[place - 1] == "\\"
        depth += (text[place] == "{" and not escaped) - (text[place] == "}" and not escaped)
        if depth == 0:
            return text[start + 1 : place].strip()
    return ""  # the box was never closed: the response was cut inside it


def tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>`, or None."""
    found = _TAG.findall(text)
    return found[-1].strip() if found else None


def said(text: str) -> str | None:
    """What follows the last "answer is" or "Answer:" up to the end of its line, or None."""
    found = _SAID.findall(text)
    return found[-1].strip().rstrip(".").strip() if found else None


def last_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def stated_answer(response: str) -> str | None:
    """The answer, sought in the whole response: box, then `<answer>`, then "answer is", then one short line."""
    text = final_text(response)
    for find in (boxed, tagged, said):
        found = find(text)
        if found is not None:
            inner = boxed(found)
            return found if inner is None else inner
    return text if text and "\n" not in text and len(text) <= LAST_RESORT_LENGTH else None


# A letter alone or followed by a mark; a capital before a space only where it is no English word (A, I).
_CHOICE = re.compile(
    r"^\W*(?:\\(?:text|mathrm|mathbf|textbf)\{)?\W*(?:([A-Za-z])(?=\s*$|\s*[.):,}\\*])|([B-HJ-Z])(?=\s))"
)


def choice_letter(text: str) -> str | None:
    """The option letter that a short answer opens with: `B`, `(B)`, `B. One`, `\\text{B}`; upper case."""
    found = _CHOICE.match(text)
    return (found.group(1) or found.group(2)).upper() if found else None
