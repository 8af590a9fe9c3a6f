# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--custom-reward-post-process-path`: rewards become advantages in a way of your own.

    fn(args, samples) -> (raw_rewards, rewards)

`samples` is one scored group in index order; both results have one number a sample. `rewards` are trained on as they
are, instead of the group's normalisation; `raw_rewards` are what metrics show. A NaN means that the sample has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax.engine.rewards.values import scalar
from relax.utils.errors import UserCodeError
from relax.utils.imports import load_callable
from relax.utils.types import Sample

FLAG = "--custom-reward-post-process-path"
PostProcess = Callable[[Sequence[Sample]], tuple[list[float], list[float]]]


def load_post_process(path: str, args: Any) -> PostProcess:
    """The function at `path`, checked at load, with `args` bound; what it returns is checked at each call."""
    function = load_callable(path, flag=FLAG, positional=("args", "samples"))

    def checked(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
        group = f"group {samples[0].group_index}" if samples else None
        try:
            answer = function(args, list(samples))
        except Exception as error:  # the run is told, with the user's traceback as the cause
            raise UserCodeError(f"{type(error).__name__}: {error}", path=path, sample=group) from error
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise UserCodeError(
                f"returned {type(answer).__name__}; return (raw_rewards, rewards)", path=path, sample=group
            )
        raw, rewards = (_numbers(values, len(samples), path, group) for values in answer)
        return raw, rewards

    return checked


def _numbers(values: Any, count: int, path: str, group: str | None) -> list[float]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, (list, tuple)) or len(values) != count:
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
        raise UserCodeError(f"returned {got} for {count} samples; return one number a sample", path=path, sample=group)
    numbers = [scalar(value) for value in values]
    for value, number in zip(values, numbers, strict=True):
        if number is None:
            raise UserCodeError(f"returned {value!r:.60}, which is no number", path=path, sample=group)
    return [float(number) for number in numbers if number is not None]
