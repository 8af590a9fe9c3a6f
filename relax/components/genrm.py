# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The genrm role: judge models for reward functions of this process, and for whoever asks at its door.

It has no step of its own and never takes weights. It is hosted where rewards are computed, so a reward function
reaches it without a hop, and both it and the door wait in the same queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relax.components.base import Role
from relax.engine.rewards.judges import Judges, set_judges
from relax.utils.errors import EngineLost


class GenRM(Role):
    """See the module. `ready` is what the last look at the engines found."""

    name = "genrm"

    def __init__(self, judges: Judges) -> None:
        super().__init__()
        self._judges = judges

    async def start(self) -> None:
        """Ask every engine once: a judge that does not answer ends the run before its first rollout."""
        ill = [f"{key} {name}: {state}" for key, name, state in await self._states() if state != "healthy"]
        if ill:
            raise EngineLost(f"judges do not answer: {'; '.join(ill)}")
        set_judges(self._judges)

    async def _states(self) -> list[tuple[str, str, str]]:
        found = await self._judges.health()
        return [(key, name, state) for key, engines in found.items() for name, state in engines.items()]

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Mapping[str, Any] | None = None,
        route_key: str | None = None,
    ) -> dict[str, str]:
        """What POST /generate answers."""
        return {"response": await self._judges.generate(messages, sampling_params, route_key)}

    async def health(self) -> dict[str, dict[str, str]]:
        """{judge: {engine: healthy, or what is wrong}}"""
        return await self._judges.health()

    async def metrics(self) -> dict[str, Any]:
        """Engines and requests, as counts since the start where they are counts."""
        states = await self._states()
        return {
            "num_engines": len(states),
            "ready_engines": sum(state == "healthy" for _, _, state in states),
            "occupied": self._judges.occupied(),
            "waiting": self._judges.waiting.total(),
            **{name: self._judges.counts[name] for name in ("answered", "retried", "timeouts", "failed", "refused")},
        }

    async def stop(self) -> None:
        set_judges(None)
        await self._judges.close()
