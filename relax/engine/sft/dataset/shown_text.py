# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""An example as text for people: what is trained stands out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from relax.engine.sft.dataset.examples import SftExample

GREEN, PLAIN = "\x1b[32m", "\x1b[0m"
MARKS = ("«", "»")


def example_text(example: SftExample, tokenizer: Any, *, colour: bool) -> str:
    """The decoded tokens, trained ones in green, or between « and » without colour; repeated media tokens once."""
    opening, closing = (GREEN, PLAIN) if colour else MARKS
    parts = []
    for trained, run in itertools.groupby(
        zip(example.tokens.tolist(), example.loss_mask.tolist(), strict=True), _mask
    ):
        text = _decoded([token for token, _ in run], tokenizer)
        parts.append(f"{opening}{text}{closing}" if trained else text)
    return "".join(parts)


def _mask(pair: tuple[int, int]) -> int:
    return pair[1]


def _decoded(tokens: Sequence[int], tokenizer: Any) -> str:
    parts: list[str] = []
    special = set(tokenizer.all_special_ids)
    plain: list[int] = []
    for token, run in itertools.groupby(tokens):
        count = len(list(run))
        if token in special and count > 1:
            parts += [tokenizer.decode(plain), f"{tokenizer.decode([token])} x {count}"]
            plain = []
        else:
            plain += [token] * count
    return "".join([*parts, tokenizer.decode(plain)])
