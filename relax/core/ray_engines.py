# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engine processes of a run on Ray: each is owned by a worker that outlives it and can start it again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from relax.config.run import RunConfig
from relax.core.placement import Placement
from relax.core.run_folder import RunFolder
from relax.distributed.ray.handles import translated
from relax.distributed.ray.worker import LOOPBACK
from relax.utils.errors import EngineLost, RoleLost

logger = logging.getLogger(__name__)

Spawn = Callable[[str, Mapping[str, Any]], Any]  # name, Ray options -> a worker
Stop = Callable[[str, float], Awaitable[None]]  # name, seconds that it may take


class RayEngines:
    """An `EnginePool` (see relax.core.engine_keeper). Workers are created and stopped by the deployment.

    Args:
        spawn: creates a worker of this name.
        stop: stops a worker, or kills it after so many seconds.
        hosting: names of workers that were told to build something, and have to be asked to stop.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, *, spawn: Spawn, stop: Stop, hosting: set[str]) -> None:
        self._config, self._folder, self._hosting = config, folder, hosting
        self._spawn, self._stop_worker = spawn, stop
        self._placement: Placement | None = None
        self._workers: dict[str, Any] = {}
        self._seats: dict[str, Mapping[str, Any]] = {}
        self._joined: set[str] = set()  # have cards of their own, to be given back
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._ends: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._next = 0
        self._spread = False

    # ------------------------------------------------------------------ engines that the run starts with

    def spawn_first(self, placement: Placement) -> None:
        """Create the workers of the engines that the configuration asks for; they import while the rest comes up."""
        self._placement = placement
        for place in range(self._config.num_engines):
            first_card = place * self._config.cluster.rollout_num_gpus_per_engine
            self._create(self.new_name(), placement.seat("rollout", first_card).options)

    async def start_first(self, *, spread: bool = False) -> dict[str, str]:
        """{engine: url} once all of them answer; the first failure is raised. `spread`: over several nodes."""
        self._spread = spread
        names = list(self._workers)
        async with asyncio.TaskGroup() as starting:
            tasks = [starting.create_task(self._start(name)) for name in names]
        return {name: task.result() for name, task in zip(names, tasks, strict=True)}

    # ------------------------------------------------------------------ engines that come and go

    def new_name(self) -> str:
        """A name that no engine of this run has had."""
        self._next += 1
        return f"engine-{self._next - 1}"

    async def launch(self, name: str) -> str:
        """Start a new engine on cards of its own -> its URL. Raises when there are none, or it does not start."""
        assert self._placement is not None
        self._joined.add(name)
        seat = await self._placement.add(name, self._config.cluster.rollout_num_gpus_per_engine)
        self._create(name, seat.options)
        return await self._start(name)

    async def relaunch(self, name: str) -> str:
        """Start an engine's process again, under the worker that it had, or a new one on the same cards -> its URL."""
        self._unwatch(name)
        worker = self._workers[name]
        try:
            await translated(worker.call.remote(name, "stop", ()), name)  # what its process group has left
            url = await translated(worker.call.remote(name, "start", ()), name, self._folder.log(name))
        except RoleLost:
            await self._stop_worker(name, 0.0)
            self._create(name, self._seats[name])
            return await self._start(name)
        self._watch(name)
        return url

    async def remove(self, name: str, *, wait_s: float) -> None:
        """Stop an engine and its worker, at most `wait_s` seconds before they are killed; give its cards back."""
        self._unwatch(name)
        if self._workers.pop(name, None) is not None:
            await self._stop_worker(name, wait_s)
        if name in self._joined and self._placement is not None:
            self._joined.discard(name)
            self._placement.give_back(name)

    async def end(self, name: str) -> None:
        """End an engine's process as if it had died; `next_end` tells."""
        self._unwatch(name)
        try:
            await translated(self._workers[name].call.remote(name, "stop", ()), name)
        except RoleLost as error:  # its end is told below either way
            logger.info("engine's worker was gone already engine=%s error=%s", name, error)
        self._ends.put_nowait((name, "it was ended because it took no weights"))

    async def next_end(self) -> tuple[str, str]:
        """(engine, what its end looked like) of the next engine that dies by itself."""
        return await self._ends.get()

    def close(self) -> None:
        for name in list(self._watches):
            self._unwatch(name)

    # ------------------------------------------------------------------ pieces

    def _create(self, name: str, options: Mapping[str, Any]) -> None:
        self._seats[name] = options
        self._workers[name] = self._spawn(name, options)

    async def _start(self, name: str) -> str:
        self._hosting.add(name)
        worker = await translated(self._workers[name].ready.remote(), name, self._folder.log(name))
        host = worker["host"] if self._spread else LOOPBACK
        build = ("relax.core.build:build_engine", (self._config, self._folder.log(f"{name}-process"), host))
        url = await translated(self._workers[name].build.remote(name, *build), name, self._folder.log(name))
        self._watch(name)
        return url

    def _watch(self, name: str) -> None:
        self._watches[name] = asyncio.create_task(self._report_end(name), name=f"engines.watch-{name}")

    def _unwatch(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()

    async def _report_end(self, name: str) -> None:
        try:
            end = await translated(self._workers[name].call.remote(name, "wait_ended", ()), name)
        except (RoleLost, EngineLost) as error:
            end = str(error)
        if end is not None:
            self._ends.put_nowait((name, end))
