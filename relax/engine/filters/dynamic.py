# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--dynamic-sampling-filter-path`: whether a scored group is worth training on.

    fn(args, samples) -> DynamicFilterOutput | bool

`samples` is one whole group. A dropped group is replaced by another prompt; drops are counted by reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax.utils.errors import UserCodeError
from relax.utils.imports import load_callable
from relax.utils.types import Sample

FLAG = "--dynamic-sampling-filter-path"


@dataclass(frozen=True)
class DynamicFilterOutput:
    """A filter's word on one group; `reason` names the drop in the log's counters."""

    keep: bool
    reason: str | None = None


def check_reward_nonzero_std(args: Any, samples: Sequence[Sample]) -> DynamicFilterOutput:
    """Keep a group whose rewards differ. They are compared in float64, and NaN (no reward) has no say.

    Which reward: `args.reward_key` of a dict reward, the reward itself otherwise. That is the raw reward, before any
    post-processing; `args.dynamic_filter_reward_key` names another entry, for example a shaped one.
    """
    key = getattr(args, "dynamic_filter_reward_key", None) or getattr(args, "reward_key", None)
    rewards = np.asarray([_reward(sample, key) for sample in samples], np.float64)
    valid = rewards[np.isfinite(rewards)]
    if not valid.size:
        return DynamicFilterOutput(False, "no_reward")
    if valid.max() > valid.min():
        return DynamicFilterOutput(True)
    return DynamicFilterOutput(False, f"zero_std_{round(float(valid[0]), 1)}")


def _reward(sample: Sample, key: str | None) -> float:
    """The reward by key: an entry of the dict, or of the parts that a built-in dict reward leaves beside its score."""
    if key is not None and not isinstance(sample.reward, dict) and key in sample.reward_parts:
        return sample.reward_parts[key]
    return sample.get_reward(key)


DynamicFilter = Callable[[Any, Sequence[Sample]], DynamicFilterOutput]


def load_dynamic_filter(path: str) -> DynamicFilter:
    """The filter at `path`, checked at load; a plain bool is taken as `keep`, any other answer is an error."""
    function = load_callable(path, flag=FLAG, positional=("args", "samples"))

    def checked(args: Any, samples: Sequence[Sample]) -> DynamicFilterOutput:
        group = str(samples[0].group_index) if samples else None
        try:
            answer = function(args, samples)
        except Exception as error:  # the run is told, with the user's traceback as the cause
            raise UserCodeError(f"{type(error).__name__}: {error}", path=path, sample=group) from error
        if isinstance(answer, (bool, np.bool_)):
            return DynamicFilterOutput(bool(answer), None if answer else "filter")
        if hasattr(answer, "keep"):
            return DynamicFilterOutput(bool(answer.keep), getattr(answer, "reason", None))
        raise UserCodeError(
            f"returned {type(answer).__name__}; return DynamicFilterOutput(keep, reason)", path=path, sample=group
        )

    return checked
