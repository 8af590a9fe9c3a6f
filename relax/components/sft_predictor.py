# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The rollout role of supervised fine-tuning: engines that answer held-out prompts between two training steps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax.components.base import Role
from relax.components.engines import EngineFleet
from relax.components.messages import EngineStatus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.engine.rollout.evaluate import EvalResult
from relax.engine.sft.predict import prediction_row, predictions_path, write_predictions
from relax.schedule.clock import Clock

Generate = Callable[[], Coroutine[Any, Any, list[EvalResult]]]
NO_SAMPLE = "failed"


@dataclass(frozen=True)
class Predicted:
    path: str
    rows: int
    failed: int
    seconds: float
    sampled_tokens: int


class SftPredictor(Role):
    """Owns the engines. They sleep while the actor has the cards.

    consumes   weights              waits for   the loop's turn
    produces   prediction files
    """

    name = "rollout"

    def __init__(
        self,
        *,
        engines: EngineFleet,
        generate: Generate,
        folder: Path,
        clock: Clock,
        close: Callable[[], Coroutine[Any, Any, None]],
        executor: Executor | None = None,
    ) -> None:
        super().__init__(executor)
        self._engines, self._generate, self._folder, self._clock, self._close = engines, generate, folder, clock, close

    async def install(self, manifest: WeightManifest) -> tuple[EngineStatus, ...]:
        return await self._engines.install(manifest)

    async def offload(self) -> None:
        await self._engines.offload()

    async def onload(self, tags: tuple[str, ...]) -> None:
        await self._engines.onload(tags)

    async def predict(self, rollout_id: int) -> Predicted:
        """Answer every evaluation prompt, greedy or as --eval-* say, and write the file of this step."""
        started = self._clock.now()
        results = await self._generate()
        rows = [prediction_row(sample, found.name, rollout_id) for found in results for sample in found.samples]
        path = predictions_path(self._folder, rollout_id)
        await self._blocking(write_predictions, path, rows)
        self.step = rollout_id + 1
        return Predicted(
            str(path),
            len(rows),
            sum(row["status"] == NO_SAMPLE for row in rows),
            self._clock.now() - started,
            sum(found.sampled_tokens for found in results),
        )

    async def engines(self) -> dict[str, object]:
        return await self._engines.status()

    async def serving(self) -> dict[str, Any]:
        """Where requests of others may be sent; none while the engines sleep."""
        return {"router": None, "engines": self._engines.serving}

    async def status(self) -> dict[str, Any]:
        return {**await super().status(), "engines": await self._engines.status()}

    async def stop(self) -> None:
        close, self._close = self._close, _nothing
        await close()


async def _nothing() -> None:
    return None
