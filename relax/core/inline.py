# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""All roles in one process: an in-memory bus, the engine as an ASGI application, no Ray and no sockets.

The harness of tests and of machines without Ray. Roles, loop, journal and trace are the product's own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax.components.messages import PRODUCERS, Roles
from relax.config.run import RunConfig
from relax.core.build import (
    InProcess,
    Wiring,
    build_actor,
    build_advantages,
    build_forward,
    build_rollout,
    bus_tables,
    engine_config,
)
from relax.core.build_critic import build_critic
from relax.core.build_genrm import build_genrm
from relax.core.build_teacher import build_teacher
from relax.core.served_models import serve_in_process
from relax.distributed.bus.local import LocalBus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule.clock import RealClock
from relax.utils.errors import ConfigError

INLINE_HOST, INLINE_PORT = "inline.invalid", 80


class OneProcess:
    """What every deployment in this process has in common: nothing joins, nothing dies alone, all stop together."""

    def __init__(self, config: RunConfig, run_dir: Path, shared_dir: Path) -> None:
        self._config = config
        self._wiring = Wiring(run_dir, shared_dir, router_host=INLINE_HOST, router_port=INLINE_PORT)
        self._roles: list[Any] = []

    async def _open_engine(self) -> Any:
        """The client of the one engine, behind the address that roles know."""
        from relax.backends.engine_client import AsgiEngineClient
        from relax.backends.native.build import EngineSettings, build_app
        from relax.utils.http_utils import register_local

        app = await asyncio.to_thread(build_app, EngineSettings.from_config(engine_config(self._config)))
        client = AsgiEngineClient(app)
        register_local(f"http://{INLINE_HOST}:{INLINE_PORT}", client)
        return client

    @property
    def engines(self) -> None:
        """The one engine lives and dies with this process."""

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


class InlineDeployment(OneProcess):
    """One engine, one training rank, everything on one event loop and a few threads."""

    def __init__(self, config: RunConfig, run_dir: Path, shared_dir: Path) -> None:
        if config.rollout.rollout_backend != "native":
            raise ConfigError("--inline runs the native engine in this process: use --rollout-backend native")
        if config.data_parallel_size != 1 or config.num_engines != 1:
            raise ConfigError('--inline has one actor rank and one engine: use {"actor": [1, 1], "rollout": [1, 1]}')
        super().__init__(config, run_dir, shared_dir)

    async def start(self) -> Roles:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when transformers is imported
        config, wiring = self._config, self._wiring
        client = await self._open_engine()
        producers = {t: r for t, r in PRODUCERS.items() if t in bus_tables(config)}
        shared = InProcess(LocalBus(producers), {"engine-0": client}, RealClock())
        rollout = build_rollout(config, wiring, shared)
        actor = shared.actor = build_actor(config, wiring, shared=shared)
        advantages = build_advantages(config, wiring, shared)
        self._roles = [rollout, actor, advantages]
        others = {}
        for role in ("reference", "actor_fwd"):
            if role in config.resource:
                others[role] = build_forward(role, config, wiring, shared)
        if config.uses_critic:
            others["critic"] = build_critic(config, wiring, shared=shared)
        served = await serve_in_process(config)
        if config.distillation.use_opd:
            own = {name: client for name, client in served.items() if name.startswith("teacher-")}
            others["teacher"] = build_teacher(config, wiring, shared, own)
        self._roles += others.values()
        if config.has_judge:
            own = {name: client for name, client in served.items() if name.startswith("genrm-")}
            self._roles.append(build_genrm(config, wiring, shared, own))
            await self._roles[-1].start()
        await rollout.start()
        info = await actor.start()
        for role in others.values():
            await role.start()
        engine = await client.info()
        return Roles(rollout, actor, advantages, **others, facts={"actor": info, "engines": {"engine-0": engine}})
