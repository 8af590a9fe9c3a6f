# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A generative prediction between two steps: the actor gives its cards to the engines and takes them back."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from relax.components.sft_messages import SftRoles
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule import events as ev
from relax.schedule.journal import Journal
from relax.utils.errors import WeightSyncError

logger = logging.getLogger(__name__)


@dataclass
class Prediction:
    """publish -> actor sleeps -> engines wake and take the version -> they answer -> they sleep -> the actor wakes"""

    roles: SftRoles
    journal: Journal
    manifest: WeightManifest | None = None
    engines_asleep: bool = False

    async def start(self) -> None:
        """Engines come up awake; the cards are the actor's."""
        await self.roles.rollout.offload()
        self.engines_asleep = True

    async def run(self, step: int) -> dict[str, int]:
        """Predict under the weights that contain steps 0 .. step -> {engine: version}."""
        manifest = self.manifest = await self.roles.actor.publish(step + 1)
        self.journal.append(ev.Weights(manifest.version, {e.name: e.checksum for e in manifest.tensors}))
        self.journal.append(ev.Published(manifest.version))
        await self.roles.actor.offload()
        await self.roles.rollout.onload(("weights",))
        self.engines_asleep = False
        statuses = await self.roles.rollout.install(manifest)
        refused = [f"{status.engine}: {status.error}" for status in statuses if not status.ok]
        if refused:
            raise WeightSyncError(f"no prediction after step {step}: {'; '.join(refused)}")
        for status in statuses:
            self.journal.append(ev.Installed(status.engine, manifest.version))
        await self.roles.rollout.onload(("kv_cache",))
        found = await self.roles.rollout.predict(step)
        logger.info(
            "predictions written step=%d rows=%d failed=%d path=%s", step, found.rows, found.failed, found.path
        )
        print(f"predictions of step {step}: {found.rows} rows in {found.path}", flush=True)
        await self.roles.rollout.offload()
        self.engines_asleep = True
        await self.roles.actor.onload()
        return {status.engine: manifest.version for status in statuses}
