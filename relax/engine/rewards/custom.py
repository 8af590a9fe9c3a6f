# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--custom-rm-path`: a user's reward function.

    fn(args, sample, **kwargs) -> float | dict              one sample
    fn(args, samples, **kwargs) -> list[float | dict]       with --group-rm: a whole group

Plain, async and partial functions, lambdas and callable objects are accepted. A plain function runs in a thread of its
own, so it may block; one that never returns costs its thread until the process ends.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from relax.utils.errors import UserCodeError
from relax.utils.imports import load_callable
from relax.utils.threads import BlockingCalls
from relax.utils.types import Sample

FLAG = "--custom-rm-path"
MAX_ABANDONED = 64  # threads that outlived their limit before the function is given up


def is_async(function: Any) -> bool:
    """Whether calling `function` gives a coroutine at once: also for partials and objects with an async `__call__`."""
    while hasattr(function, "func") and hasattr(function, "keywords"):  # functools.partial
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class CustomReward:
    """The loaded function with the `args` that it is called with."""

    def __init__(self, path: str, args: Any, *, group: bool) -> None:
        self.path = path
        self.abandoned = 0  # threads that outlived their limit
        self._args = args
        self._function = load_callable(path, flag=FLAG, positional=("args", "samples" if group else "sample"))
        self._async = is_async(self._function)
        self._calls = BlockingCalls("reward")

    async def one(self, sample: Sample) -> Any:
        return await self._call(sample)

    async def group(self, samples: Sequence[Sample]) -> list[Any]:
        """One value per sample; any other number of values is an error that names the function."""
        values = await self._call(list(samples))
        if hasattr(values, "tolist"):
            values = values.tolist()
        if not isinstance(values, (list, tuple)):
            raise UserCodeError(f"returned {type(values).__name__}; --group-rm wants a list", path=self.path)
        if len(values) != len(samples):
            raise UserCodeError(f"returned {len(values)} rewards for {len(samples)} samples", path=self.path)
        return list(values)

    async def _call(self, argument: Any) -> Any:
        if self._async:
            return await self._function(self._args, argument)
        if self.abandoned >= MAX_ABANDONED:
            raise UserCodeError(f"{self.abandoned} calls never returned; give it a time limit", path=self.path)
        try:
            value = await self._calls.call(self._function, self._args, argument)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        return await value if inspect.isawaitable(value) else value
