# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Engines beside the policy's on Ray: one worker each, which owns the process. One that dies ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from relax.config.run import RunConfig
from relax.core.placement import Placement
from relax.core.run_folder import RunFolder
from relax.core.served_models import ServedModel, served_models
from relax.distributed.ray.handles import translated
from relax.distributed.ray.worker import LOOPBACK
from relax.utils.errors import EngineLost

Spawn = Callable[[str, Mapping[str, Any]], Any]  # name, Ray options -> a worker


class RayServed:
    """`hosting` gets the names of workers that were told to build something."""

    def __init__(self, config: RunConfig, folder: RunFolder, *, spawn: Spawn, hosting: set[str]) -> None:
        self._config, self._folder, self._spawn, self._hosting = config, folder, spawn, hosting
        self._models: dict[str, ServedModel] = {n: m for m in served_models(config) for n in m.engines}
        self._workers: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    def spawn(self, placement: Placement) -> None:
        """Create the workers; they import while the rest comes up."""
        for name, model in self._models.items():
            place = model.first_card + model.engines.index(name) * model.cards_per_engine
            self._workers[name] = self._spawn(name, placement.seat(model.role, place).options)

    async def start(self, *, spread: bool) -> dict[str, str]:
        """{engine: url} once all of them answer; the first failure is raised. `spread`: over several nodes."""
        urls = await asyncio.gather(*(self._start(name, spread) for name in self._models))
        return dict(zip(self._models, urls, strict=True))

    async def _start(self, name: str, spread: bool) -> str:
        self._hosting.add(name)
        log = self._folder.log(name)
        worker = await translated(self._workers[name].ready.remote(), name, log)
        host = worker["host"] if spread else LOOPBACK
        arguments = (self._config, self._models[name], self._folder.log(f"{name}-process"), host)
        path = "relax.core.served_models:build_served_engine"
        return await translated(self._workers[name].build.remote(name, path, arguments), name, log)

    async def watch(self, name: str) -> None:
        """Raise when the engine, or the worker that owns it, dies."""
        end = await translated(self._workers[name].call.remote(name, "wait_ended", ()), name, self._folder.log(name))
        if end is not None:
            raise EngineLost(f"{name}: {end}; its log is {self._folder.log(f'{name}-process')}")
        await asyncio.Event().wait()  # it was told to stop
