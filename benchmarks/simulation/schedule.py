# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One schedule of the benchmark: a seed's run with its faults, resumed after each crash, and every broken promise."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulation.checker import violations
from benchmarks.simulation.elastic import ElasticWorld
from benchmarks.simulation.faults import Troubled, faulty_bus
from benchmarks.simulation.line import line_violations
from benchmarks.simulation.plan import Plan, Trouble, trouble_of
from benchmarks.simulation.twins import VOCABULARY
from benchmarks.simulation.world import World
from relax.core.engine_keeper import KeeperSettings
from relax.core.resume import find_resumption, resume
from relax.distributed.bus.local import LocalBus
from relax.schedule.clock import run_virtual

MOST_SECONDS = 20_000.0  # of virtual time; a run takes some hundred


@dataclass(frozen=True)
class Outcome:
    """`found` is empty when every promise holds; otherwise a sentence a broken promise."""

    plan: Plan
    trouble: Trouble
    found: tuple[str, ...]
    incarnations: int

    def faults(self) -> list[str]:
        """Which kinds of fault the schedule had."""
        plan, trouble = self.plan, self.trouble
        kinds = {
            "crash": self.incarnations > 1,
            "engine_dies": bool(trouble.kills),
            "update_missed": bool(plan.install_failures),
            "hang": bool(plan.hanging_requests),
            "slow": bool(plan.slow_requests) or plan.pace > 1,
            "reorder": bool(trouble.reorders),
            "duplicate": bool(trouble.repeats),
            "stale_put": bool(trouble.stale_puts),
        }
        return [name for name, there in kinds.items() if there]


def play(seed: int, **parts: Any) -> Outcome:
    """Run a seed to its end. `parts` replaces classes of the product (see `World`), to plant mistakes."""
    return play_plan(*trouble_of(seed), **parts)


def play_plan(plan: Plan, trouble: Trouble, **parts: Any) -> Outcome:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="relax-simulate-") as folder:
        worlds: list[World] = []
        found: list[str] = []
        for crash_at in (*trouble.crash_at, None):
            world = make_world(plan, trouble, Path(folder), crash_at, first=not worlds, parts=parts)
            worlds.append(world)
            try:
                run_virtual(_bounded(world, Path(folder), resumes=len(worlds) > 1))
            except Exception as error:  # told in `found`: an error that no fault explains is a broken promise
                found.append(f"the run ended with {type(error).__name__}: {error}")
            if found or not world.cut_off:
                break
        if not found:
            try:
                found += _broken(worlds)
            except (LookupError, ValueError) as error:  # told in `found`: evidence that cannot be read is broken, too
                found.append(f"the evidence cannot be read: {type(error).__name__}: {error}")
        return Outcome(plan, trouble, tuple(found), len(worlds))


def _broken(worlds: list[World]) -> list[str]:
    last, found = worlds[-1], []
    if not last.loop.scheduler.finished:
        found.append(f"the run ended after {last.loop.scheduler.stepped} of {last.plan.rollouts} rollouts")
    for number, world in enumerate(worlds):
        found += violations(world, finished=len(worlds) == 1, before=worlds[:number])
    return found + line_violations(worlds)


def make_world(
    plan: Plan, trouble: Trouble, folder: Path, crash_at: int | None, *, first: bool, parts: Mapping[str, Any]
) -> World:
    bus = parts.get("bus_class", LocalBus)
    options: dict[str, Any] = {
        **parts,
        # a resumed run reads its weights: what it starts with must not matter
        "start_table": None if first else np.zeros((VOCABULARY, VOCABULARY)),
        "handle": lambda world, role: Troubled(world, role, trouble, crash_at),
    }
    if trouble.kills:
        world: World = ElasticWorld(
            plan, folder, settings=KeeperSettings(relaunch=True), script=partial(_kill, trouble), **options
        )
    else:
        world = World(plan, folder, **options)
    world.bus_class = faulty_bus(bus, world, trouble)
    return world


async def _bounded(world: World, folder: Path, *, resumes: bool) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        await world.run(partial(_load, folder) if resumes else None)


async def _load(folder: Path, world: World) -> None:
    resumption = find_resumption(str(folder), None, world.dataset.digest)
    if resumption is not None:
        world.stands_on = (resumption.state.rollout_id, resumption.state.journal["driver"])
        await resume(world.loop, resumption)


async def _kill(trouble: Trouble, world: ElasticWorld) -> None:
    for number, second in enumerate(trouble.kills):
        await asyncio.sleep(max(0.0, second - asyncio.get_running_loop().time()))
        living = sorted(name for name, engine in world.processes.items() if not engine.is_dead)
        if living:
            world.kill(living[int(world.noise("kill", number) * len(living))])
