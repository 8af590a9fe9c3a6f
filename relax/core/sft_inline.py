# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Supervised fine-tuning in one process: producer, trainer and, with predictions, an engine, on an in-memory bus."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax.components.sft_messages import PRODUCERS, SftRoles
from relax.config.run import RunConfig
from relax.core.build import InProcess, Wiring, engine_config
from relax.core.inline import INLINE_HOST, INLINE_PORT
from relax.core.sft_build import build_producer, build_sft_actor
from relax.core.sft_predict_build import build_predictor
from relax.distributed.bus.local import LocalBus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule.clock import RealClock


class SftInlineDeployment:
    """One producer and one training rank on one event loop and a few threads."""

    def __init__(self, config: RunConfig, run_dir: Path, shared_dir: Path) -> None:
        self._config = config
        self._wiring = Wiring(run_dir, shared_dir, router_host=INLINE_HOST, router_port=INLINE_PORT)
        self._roles: list[Any] = []

    async def start(self) -> SftRoles:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when transformers is imported
        shared = InProcess(LocalBus(PRODUCERS), await self._engine(), RealClock())
        producer = await asyncio.to_thread(build_producer, self._config, self._wiring, 0, 1, shared)
        self._roles.append(producer)
        data = await producer.data()
        actor = shared.actor = build_sft_actor(self._config, self._wiring, 0, data.rows, shared)
        self._roles.append(actor)
        info = await actor.start()
        rollout = None
        if self._config.raises_rollout:
            rollout = build_predictor(self._config, self._wiring, shared)
            self._roles.append(rollout)
        return SftRoles((producer,), actor, rollout, {"actor": info})

    async def _engine(self) -> dict[str, Any]:
        """The engine of the predictions, on this process's own HTTP door."""
        if not self._config.raises_rollout:
            return {}
        from relax.backends.engine_client import AsgiEngineClient
        from relax.backends.native.build import EngineSettings, build_app
        from relax.utils.http_utils import register_local

        app = await asyncio.to_thread(build_app, EngineSettings.from_config(engine_config(self._config)))
        client = AsgiEngineClient(app)
        register_local(f"http://{INLINE_HOST}:{INLINE_PORT}", client)
        return {"engine-0": client}

    @property
    def engines(self) -> None:
        """No engine comes or goes."""

    @property
    def metrics_door(self) -> None:
        """There are no doors."""

    async def published(self, manifest: WeightManifest, engines: Mapping[str, int]) -> None:
        """There are no doors that report versions."""

    async def watch(self) -> None:
        """There is no other process that could die."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop every role; the first error is raised after all have been asked."""
        from relax.utils.http_utils import unregister_local

        roles, self._roles = self._roles, []
        results = await asyncio.gather(*(role.stop() for role in roles), return_exceptions=True)
        unregister_local(f"http://{INLINE_HOST}:{INLINE_PORT}")
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]
