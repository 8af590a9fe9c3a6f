# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whether two answers are equal, as far as plain numbers and equal texts decide: in microseconds.

What needs mathematics is left to `symbolic.py`.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_ANSWER_LENGTH = 1000  # characters; a longer answer is wrong
RELATIVE_TOLERANCE = Fraction(1, 10**6)  # between a decimal number and what it may have been rounded from

_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)?(?:\.\d*)?")
_PERCENT = re.compile(r"^(.*?)\s*\\?%$", re.DOTALL)
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad|~|\s+")
_WRAPPERS = re.compile(r"^\\(?:text|mathrm|mathbf|textbf|mbox)\{([^{}]*)\}$")
_LEFT_RIGHT = re.compile(r"\\(?:left|right)(?![A-Za-z])")


def tidy(answer: str) -> str:
    """The answer without dollar signs, outer text macros, sizing commands, thousands braces and a final dot."""
    text = answer.strip().strip("$").replace("\\$", "").replace("$", "").replace("{,}", ",")
    text = _LEFT_RIGHT.sub("", text).replace("\\!", "").strip()
    text = text.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]").strip()
    text = text.rstrip(".").strip() if not text.endswith("..") else text
    inner = _WRAPPERS.match(text)
    return inner.group(1).strip() if inner else text


def as_number(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal, one with thousands commas, or a ratio of two of them; else None."""
    top, slash, bottom = text.replace(" ", "").partition("/")
    parts = [top, bottom] if slash else [top]
    if not all(re.search(r"\d", part) and _NUMBER.fullmatch(part) for part in parts):
        return None
    values = [Fraction(part.replace(",", "")) for part in parts]
    if len(values) == 1:
        return values[0]
    return values[0] / values[1] if values[1] else None


def without_percent(text: str) -> tuple[str, bool]:
    found = _PERCENT.match(text)
    return (found.group(1), True) if found else (text, False)


def quick_verdict(answer: str, gold: str) -> bool | None:
    """True or False where plain text or plain numbers decide; None where mathematics is needed."""
    answer, gold = tidy(answer), tidy(gold)
    if not answer or len(answer) > MAX_ANSWER_LENGTH:
        return False
    if _SPACES.sub("", answer) == _SPACES.sub("", gold):
        return True
    (plain_answer, percent_answer), (plain_gold, percent_gold) = without_percent(answer), without_percent(gold)
    left, right = as_number(plain_answer), as_number(plain_gold)
    if left is None or right is None:
        return None
    if percent_answer != percent_gold:
        # "50%" answers both 50 and 0.5: data sets write percentages either way
        shift = Fraction(1, 100)
        return left == right or (left * shift == right if percent_answer else left == right * shift)
    return left == right
