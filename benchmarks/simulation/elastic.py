# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A world whose engines are processes that die, come back, join and leave."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulation.world import HOST, PORT, World
from relax.backends.tiny.engine import EchoEngine
from relax.components.elastic import EngineRequests
from relax.core.engine_keeper import EngineKeeper, KeeperSettings
from relax.utils.errors import EngineLost
from relax.utils.http_utils import unregister_local


@dataclass
class ElasticWorld(World):
    """A world whose engines are processes that `kill` ends, with the product's own keeper."""

    settings: KeeperSettings = field(default_factory=KeeperSettings)
    launch_s: float = 5.0
    broken_launches: int = 0  # the first so many launches fail
    script: Any = None  # async (world) -> None, beside the run
    processes: dict[str, EchoEngine] = field(default_factory=dict)
    ends: asyncio.Queue = field(default_factory=asyncio.Queue)
    launches: int = 0
    removed: list[str] = field(default_factory=list)

    # -------------------------------------------------------- the pool

    def new_name(self) -> str:
        self.launches += 1
        return f"engine-{self.plan.num_engines + self.launches}"

    async def launch(self, name: str) -> str:
        await asyncio.sleep(self.launch_s)
        if self.broken_launches:
            self.broken_launches -= 1
            raise EngineLost(f"{name} does not start")
        self.launches += 1
        engine = self.new_engine(0, f"echo://{name}/{self.launches}")
        self.processes[name] = engine
        self.router.know(engine)
        return engine.url

    relaunch = launch

    async def remove(self, name: str, *, wait_s: float) -> None:
        self.removed.append(name)
        if name in self.processes:
            self.processes.pop(name).die()

    async def end(self, name: str) -> None:
        self.kill(name)

    async def next_end(self) -> tuple[str, str]:
        return await self.ends.get()

    def kill(self, name: str) -> None:
        self.processes[name].die()
        self.ends.put_nowait((name, "killed"))

    def connect(self, name: str, url: str) -> EchoEngine:
        engine = self.processes[name]
        assert engine.url == url
        return engine

    # -------------------------------------------------------- the run

    def build(self) -> None:
        self.engines_return = self.settings.relaunch
        super().build()
        self.processes = dict(self.rollout._engines._engines)
        self.rollout._requests = EngineRequests(tuple(self.processes))

    async def run(self, before: Any = None) -> World:
        async def main() -> None:
            tasks = [asyncio.create_task(self.loop.run()), asyncio.create_task(self.keeper.run())]
            script = asyncio.create_task(self.script(self)) if self.script else None
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in [*tasks, *([script] if script else [])]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if script is not None:
                    await asyncio.gather(script, return_exceptions=True)
                    if not script.cancelled() and script.exception():
                        raise script.exception()

        await self.start()
        self.keeper = EngineKeeper(self.loop, self, self.settings)
        try:
            await main()
        finally:
            await self.rollout.stop()
            await self.actor.stop()
            unregister_local(f"http://{HOST}:{PORT}")
        return self

    async def steps(self, count: int) -> None:
        """Wait until so many rollouts are trained."""
        while self.loop.scheduler.stepped < count:
            await asyncio.sleep(0.5)
