# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What every role has in common: a step counter, a life, and work off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class Role:
    """A plain asyncio class. Its Serve door and its Ray worker know it; it knows neither.

    `executor` runs blocking work (model forward, disk); None runs it inline, which simulation uses.
    """

    name = "role"

    def __init__(self, executor: Executor | None = None) -> None:
        self.step = 0  # rollouts that this role has finished
        self.stop_requested = False  # travels to the controller in the role's next report
        self._executor = executor

    async def get_step(self) -> int:
        return self.step

    async def set_step(self, step: int) -> None:
        self.step = step

    async def stop_service(self) -> None:
        """Ask the run to end after the rollout that is in training."""
        self.stop_requested = True

    async def status(self) -> dict[str, Any]:
        return {"role": self.name, "step": self.step}

    async def stop(self) -> None:
        """Release what the role holds. Idempotent."""

    async def _blocking(self, function: Callable[..., T], *args: Any) -> T:
        if self._executor is None:
            return function(*args)
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
