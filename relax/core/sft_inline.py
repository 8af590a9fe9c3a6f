# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Supervised fine-tuning in one process: producer, trainer and, with predictions, an engine, on an in-memory bus."""

from __future__ import annotations

import asyncio
import os

from relax.components.sft_messages import PRODUCERS, SftRoles
from relax.core.build import InProcess
from relax.core.inline import OneProcess
from relax.core.sft_build import build_producer, build_sft_actor
from relax.core.sft_predict_build import build_predictor
from relax.distributed.bus.local import LocalBus
from relax.schedule.clock import RealClock


class SftInlineDeployment(OneProcess):
    """One producer and one training rank on one event loop and a few threads."""

    async def start(self) -> SftRoles:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when transformers is imported
        engines = {"engine-0": await self._open_engine()} if self._config.raises_rollout else {}
        shared = InProcess(LocalBus(PRODUCERS), engines, RealClock())
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
