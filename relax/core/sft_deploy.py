# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Supervised fine-tuning on Ray.

worker sft                 producer 0: evaluation rows, and the training rows where it is the only one
worker sft-{i}             one producer a shard, with --sft-async-prepack and RELAX_SFT_TQ_SHARDS above 1
worker actor-{rank}        one training rank
worker rollout, engine-{i} with --sft-predict-interval; they take turns with the actor on its cards
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from relax.components.sft_messages import SftData, SftRoles
from relax.core.build import Wiring
from relax.core.deploy import ROLLOUT_PRELOAD, TRAIN_PRELOAD, RayDeployment
from relax.core.placement import on_node
from relax.core.sft_build import num_producers
from relax.distributed.ray.handles import RemoteGroup

logger = logging.getLogger(__name__)
PRODUCER_PRELOAD = ("transfer_queue", "transformers")


class SftRayDeployment(RayDeployment):
    """See the module; everything that is not about roles is that of the other runs."""

    @property
    def _producers(self) -> list[str]:
        number = num_producers(self._config)
        return ["sft"] if number == 1 else [f"sft-{shard}" for shard in range(number)]

    def _start_workers(self, node: str) -> None:
        config, cpu = self._config, {"num_cpus": 0, "resources": on_node(node)}
        for name in self._producers:
            self._worker(name, PRODUCER_PRELOAD, cpu)
        for rank in range(config.resource["actor"].gpus):
            self._worker(f"actor-{rank}", TRAIN_PRELOAD, self._seat("actor", rank), dict(config.train.train_env_vars))
        if config.raises_rollout:
            self._worker("rollout", ROLLOUT_PRELOAD, cpu)
            self.engines.spawn_first(self._places)

    async def _build_roles(self, wiring: Wiring) -> SftRoles:
        config, build = self._config, "relax.core.sft_build:"
        names, ranks = self._producers, range(config.resource["actor"].gpus)
        if len(names) > 1:
            logger.info(
                "SFT remote shard producer enabled: producers=%s shards=%d rows_per_shard=%d seed=%d",
                ",".join(names),
                len(names),
                config.global_batch_size // len(names),
                config.train.seed,
            )
        await asyncio.gather(
            *(
                self._build(name, "sft", build + "build_producer", config, wiring, shard, len(names))
                for shard, name in enumerate(names)
            )
        )
        producers = tuple(self._handle(name, "sft") for name in names)
        data: SftData = await producers[0].data()
        infos = await asyncio.gather(
            *(
                self._build(f"actor-{r}", "actor", build + "build_sft_actor", config, wiring, r, data.rows)
                for r in ranks
            )
        )
        rollout = None
        if config.raises_rollout:
            await self._build("rollout", "rollout", "relax.core.sft_predict_build:build_predictor", config, wiring)
            rollout = self._handle("rollout", "rollout")
        facts: dict[str, Any] = {"actor": infos[0], "http": self.http_address}
        actor = RemoteGroup([self._handle(f"actor-{r}", "actor") for r in ranks])
        return SftRoles(producers, actor, rollout, facts)

    def _doors(self) -> dict[str, str]:
        doors = {"sft": self._producers[0], "actor": "actor-0"}
        return doors | ({"rollout": "rollout"} if self._config.raises_rollout else {})
