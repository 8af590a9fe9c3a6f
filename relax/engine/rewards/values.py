# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a reward function may return, and what is made of it. A wrong kind is a bug in the function: it is named."""

from __future__ import annotations

import numbers
from typing import Any

from relax.utils.errors import UserCodeError
from relax.utils.types import Sample


def scalar(value: Any) -> float | None:
    """bool, int, float, numpy scalar, or an array or tensor of one element, as float; None for any other type."""
    if callable(getattr(value, "tolist", None)):  # numpy scalars, arrays and tensors
        value = value.tolist()
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
    return float(value) if isinstance(value, numbers.Real) else None


def sample_name(sample: Sample) -> str:
    return f"{sample.group_index}.{sample.index}"


def store_reward(sample: Sample, value: Any, *, path: str, reward_key: str | None) -> float | None:
    """Fill `sample.reward` and `sample.reward_parts` from what `path` returned.

    Returns the score, or None when the function said that it has none (None as value or as the dict's score).
    """
    if value is None:
        return None
    if isinstance(value, dict):
        return _store_dict(sample, value, path, reward_key)
    number = scalar(value)
    if number is None:
        raise UserCodeError(
            f"returned {type(value).__name__} {value!r:.80}; a reward is a float or a dict of floats",
            path=path,
            sample=sample_name(sample),
        )
    sample.reward = number
    return number


def _store_dict(sample: Sample, value: dict[str, Any], path: str, reward_key: str | None) -> float | None:
    if reward_key is None:
        raise UserCodeError(
            f"returned a dict with keys {sorted(map(str, value))}: set --reward-key to the one that is the score",
            path=path,
            sample=sample_name(sample),
        )
    if reward_key not in value:
        raise UserCodeError(
            f"--reward-key {reward_key!r} is not in the returned dict: keys are {sorted(map(str, value))}",
            path=path,
            sample=sample_name(sample),
        )
    scalars = {str(name): scalar(part) for name, part in value.items()}
    score = scalars[reward_key]
    if score is None and value[reward_key] is not None:
        raise UserCodeError(
            f"--reward-key {reward_key!r} holds {type(value[reward_key]).__name__}, not a number",
            path=path,
            sample=sample_name(sample),
        )
    sample.reward = {name: part if scalars[str(name)] is None else scalars[str(name)] for name, part in value.items()}
    sample.reward_parts = {name: part for name, part in scalars.items() if part is not None and name != reward_key}
    return score
