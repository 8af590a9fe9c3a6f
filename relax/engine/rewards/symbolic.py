# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whether two mathematical answers are equal, by math-verify. Imported by worker processes only (`worker_pool.py`).

A hostile answer may take for ever, so the call has a limit and its process can be killed. What a limit must not count
is done at the import: math-verify, sympy and the LaTeX grammar, which is read when something is parsed first.

Nothing is ever executed: math-verify gets its LaTeX grammar only. Its expression parser goes through Python's `eval`
and is never given a text.
"""

from __future__ import annotations

from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from relax.engine.rewards.math_check import quick_verdict, tidy, without_percent


def equal_answers(answer: str, gold: str) -> bool:
    """`quick_verdict`, then math-verify on the LaTeX of both."""
    verdict = quick_verdict(answer, gold)
    if verdict is not None:
        return verdict
    answer, _ = without_percent(tidy(answer))
    gold, _ = without_percent(tidy(gold))
    # Time-outs by signal work in main threads only: off here, the worker's owner kills it instead.
    return bool(verify(_parse(gold), _parse(answer), timeout_seconds=None))


def _parse(text: str) -> list:
    no_timeout: Any = None  # documented, although typed as int
    return parse(f"${text}$", extraction_config=[LatexExtractionConfig()], parsing_timeout=no_timeout)


equal_answers(r"\frac{1}{2}", r"\sqrt{x}")
