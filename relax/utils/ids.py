# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Identity of a request on the wire: `rid = g{group}.{index}.a{attempt}.t{turn}[.p{part}]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RID = re.compile(r"^g(\d+)\.(\d+)\.a(\d+)\.t(\d+)(?:\.p(\d+))?$")


@dataclass(frozen=True, order=True)
class RequestId:
    """One engine request: sample (group, index), regeneration, turn, and a fan-out part."""

    group: int
    index: int
    attempt: int = 0
    turn: int = 0
    part: int | None = None

    def __str__(self) -> str:
        tail = "" if self.part is None else f".p{self.part}"
        return f"g{self.group}.{self.index}.a{self.attempt}.t{self.turn}{tail}"

    @classmethod
    def parse(cls, text: str) -> RequestId:
        """Inverse of `str`; raises ValueError for any other form."""
        match = _RID.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a request id of the form g7.0.a0.t0 or g7.0.a0.t0.p1")
        group, index, attempt, turn, part = match.groups()
        return cls(int(group), int(index), int(attempt), int(turn), None if part is None else int(part))
