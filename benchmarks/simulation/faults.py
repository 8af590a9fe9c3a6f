# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Faults of transport and processes: rows twice, late, stale and in another order, reports twice, roles that die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from benchmarks.simulation.plan import Trouble
from benchmarks.simulation.world import Crash, World
from relax.components.messages import RolloutReport
from relax.distributed.bus.base import Block, BusConflict, PartitionDropped
from relax.distributed.bus.local import LocalBus


def faulty_bus(base: type[LocalBus], world: World, trouble: Trouble) -> type[LocalBus]:
    """A bus over `base` whose clients misbehave. `world.notes` gets what an honest bus would never do."""

    class FaultyBus(base):  # type: ignore[misc, valid-type]
        def __init__(self, producers: Mapping[str, str]) -> None:
            super().__init__(producers)
            self.late: set[asyncio.Task[None]] = set()

        async def put(self, partition: str, table: str, blocks: Iterable[Block]) -> None:
            blocks, who = list(blocks), (partition, table)
            if world.noise("reorder", *who) < trouble.reorders:
                blocks.reverse()
                for block in blocks:
                    await super().put(partition, table, [block])
                    await asyncio.sleep(world.noise("piece", *who, block.uid))
            else:
                await super().put(partition, table, blocks)
            if world.noise("repeat", *who) < trouble.repeats:
                self._later(partial(self._again, partition, table, blocks), world.noise("late", *who))
            if world.noise("stale", *who) < trouble.stale_puts:
                self._later(partial(self._stale, partition, table, blocks), world.noise("later", *who))

        def _later(self, put: Callable[[], Coroutine[Any, Any, None]], share: float) -> None:
            async def act() -> None:
                await asyncio.sleep(10.0 * share)
                await put()

            task = asyncio.create_task(act())
            self.late.add(task)
            task.add_done_callback(self.late.discard)

        async def _again(self, partition: str, table: str, blocks: list[Block]) -> None:
            try:
                await base.put(self, partition, table, blocks)
            except PartitionDropped:
                pass  # right: the rollout is trained
            except BusConflict as error:
                world.notes.append(f"the same rows again are refused: {error}")

        async def _stale(self, partition: str, table: str, blocks: list[Block]) -> None:
            old = [Block(b.uid, {name: column + 1 for name, column in b.columns.items()}) for b in blocks]
            try:
                await base.put(self, partition, table, old)
            except (PartitionDropped, BusConflict):
                return
            world.notes.append(f"{partition}/{table}: other contents of the same rows are taken")

        async def get(
            self, partition: str, tables: Iterable[str], uids: Iterable[int], *, deadline_s: float
        ) -> dict[str, dict[int, Block]]:
            found = await super().get(partition, tables, uids, deadline_s=deadline_s)
            if world.noise("get", partition, *found) >= trouble.reorders:
                return found
            return {table: dict(reversed(rows.items())) for table, rows in reversed(found.items())}

    return FaultyBus


class Troubled:
    """A handle that repeats reports, and whose role dies in the n-th call of the world, before or after its work."""

    def __init__(self, world: World, role: Any, trouble: Trouble, crash_at: int | None) -> None:
        self._world, self._role, self._trouble, self._crash_at = world, role, trouble, crash_at
        self._last: RolloutReport | None = None
        self._reports = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._role, name)

        async def call(*args: Any) -> Any:
            world = self._world
            world.calls_made += 1
            dies = world.calls_made == self._crash_at
            if dies and world.noise("dies", self._crash_at, name) < 0.5:
                raise Crash
            result = await (self._report(method, *args) if name == "report" else method(*args))
            if dies:
                raise Crash
            return result

        return call

    async def _report(self, method: Any, *args: Any) -> RolloutReport:
        self._reports += 1
        if self._last is not None and self._world.noise("again", self._reports) < self._trouble.repeats:
            last, self._last = self._last, None
            return last
        self._last = await method(*args)
        return self._last
