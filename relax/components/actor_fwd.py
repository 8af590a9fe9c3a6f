# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Forward-only copies of the policy: the reference role and the actor_fwd role (old log-probs)."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path

from relax.backends.base import ModelSpec, RankInfo, TrainBackend
from relax.components.base import Role
from relax.components.messages import ForwardReport, ReleasedGroup
from relax.components.scoring import score_groups
from relax.components.training_data import BatchSettings
from relax.distributed.bus.base import Bus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule.clock import Clock


class ForwardRole(Role):
    """Scores a rollout under fixed weights and writes one column.

    consumes   rollout, media                          waits for   rollout
    produces   ref_logprobs (or old_logprobs)          feeds       actor
    """

    def __init__(
        self,
        *,
        name: str,
        table: str,
        column: str,
        backend: TrainBackend,
        model: ModelSpec,
        settings: BatchSettings,
        bus: Bus,
        clock: Clock,
        deadline_s: float,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(executor)
        self.name, self._table, self._column = name, table, column
        self._backend, self._model, self._settings, self._bus = backend, model, settings, bus
        self._clock, self._deadline_s = clock, deadline_s
        self.version = 0
        self.info: RankInfo | None = None

    async def start(self) -> RankInfo:
        self.info = await self._blocking(self._backend.open, self._model, None)
        return self.info

    async def score(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport:
        """Write the role's table for this rank's groups of the rollout; all ranks together write all of them."""
        assert self.info is not None
        report = await score_groups(
            rollout_id,
            groups,
            table=self._table,
            column=self._column,
            tag="actor",
            backend=self._backend,
            info=self.info,
            settings=self._settings,
            bus=self._bus,
            clock=self._clock,
            deadline_s=self._deadline_s,
            blocking=self._blocking,
        )
        self.step = rollout_id + 1
        return replace(report, stop_requested=self.stop_requested)

    async def load_version(self, manifest: WeightManifest) -> None:
        """Take the weights of a published version."""
        await self._blocking(self._load, manifest)
        self.version = manifest.version

    def _load(self, manifest: WeightManifest) -> None:
        if manifest.folder is None:
            raise ValueError(f"{self.name} reads weights from a folder; version {manifest.version} has none")
        self._backend.load_weights(Path(manifest.folder))  # type: ignore[attr-defined]

    async def save(self, folder: str) -> None:
        """Write the weights under which it scores: a reference that has been refreshed is in no other file."""
        await self._blocking(self._backend.save, Path(folder))

    async def load(self, folder: str) -> None:
        await self._blocking(partial(self._backend.load, Path(folder), optimizer=False))

    async def stop(self) -> None:
        await self._blocking(self._backend.close)
