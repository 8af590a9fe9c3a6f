# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Functions of users that change prompts, rewards and what is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relax.utils.types import Sample


def shout(prompt: str, row: Mapping[str, Any]) -> str:
    return f"{row['label']}! {prompt.upper()}"


def remove_first(args: Any, groups: Sequence[Sequence[Sample]]) -> None:
    for group in groups:
        group[0].remove_sample = True


def opposite(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Advantages by place, whatever the reward: +1 for the first sample, -1 for the second."""
    return [sample.reward for sample in samples], [1.0 - 2.0 * sample.index for sample in samples]


def one_too_few(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    return [0.0] * len(samples), [0.0]
