# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Engines join, leave, die and come back while a run goes on.

    joins    process starts -> newest version is installed -> journal -> router -> counts for the gate
    leaves   router -> journal -> drains -> process ends
    dies     router -> journal; with --use-fault-tolerance, or when asked, its process starts again and joins

Installs take turns with those of the training loop (`TrainingLoop.installing`), so an engine that joins holds the
newest version, and one that has left is told of none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relax.components.messages import EngineOrder
from relax.core.training_loop import TrainingLoop, first_error
from relax.schedule import events as ev
from relax.utils.errors import EngineLost, RelaxError, WeightSyncError

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0  # one long poll for orders
RELAUNCH_TRIES = 3
RELAUNCH_WAIT_S = 1.0  # before the second try; doubles


class EnginePool(Protocol):
    """The processes behind the engines."""

    def new_name(self) -> str: ...

    async def launch(self, name: str) -> str: ...

    async def relaunch(self, name: str) -> str: ...

    async def remove(self, name: str, *, wait_s: float) -> None: ...

    async def end(self, name: str) -> None: ...

    async def next_end(self) -> tuple[str, str]: ...


@dataclass(frozen=True)
class KeeperSettings:
    relaunch: bool = False  # start a dead engine again without being asked
    launch_timeout_s: float = 1800.0  # of a scale-out, from the order to the last join
    drain_timeout_s: float = 30.0
    shutdown_timeout_s: float = 30.0


class EngineKeeper:
    """Carries out the orders of the rollout role's door, and notices deaths. `run` ends by a failure or a cancel."""

    def __init__(self, loop: TrainingLoop, pool: EnginePool, settings: KeeperSettings) -> None:
        self._loop, self._pool, self._settings = loop, pool, settings
        self._rollout, self._clock = loop.roles.rollout, loop.clock
        self._dead: dict[str, str] = {}  # engines that have died -> how
        self._starting: set[str] = set()
        self._leaving: set[str] = set()  # to be removed: their end is no death
        self._tasks: asyncio.TaskGroup | None = None
        if settings.relaunch:
            loop.on_no_engine = self._restart_all

    async def run(self) -> None:
        """Raises EngineLost when no engine is left and none is on its way."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._orders(), name="engines.orders")
                self._tasks.create_task(self._ends(), name="engines.ends")
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _orders(self) -> None:
        carry_out = {"scale_out": self._scale_out, "scale_in": self._scale_in, "recover": self._recover}
        while True:
            order = await self._rollout.next_engine_order(PATIENCE_S)
            if order is not None:
                logger.info("engine order kind=%s id=%s", order.kind, order.request_id)
                self._spawn(carry_out[order.kind](order), order.kind)

    async def _ends(self) -> None:
        while True:
            name, end = await self._pool.next_end()
            if name in self._leaving:
                continue
            self._dead[name] = end
            if name not in self._starting:  # who starts it looks again
                self._spawn(self._lost(name, end), f"lost-{name}")

    def _spawn(self, work: Any, name: str) -> None:
        assert self._tasks is not None
        self._tasks.create_task(work, name=f"engines.{name}")

    # ------------------------------------------------------------------ deaths

    async def _lost(self, name: str, end: str) -> None:
        if self._settings.relaunch:
            self._starting.add(name)
        await self._left(name, end)
        logger.error("engine lost engine=%s left=%d end=%s", name, len(self._loop.scheduler.engines), end)
        if self._settings.relaunch:
            await self._relaunch(name)
        self._check_left(name)

    async def _left(self, name: str, reason: str) -> None:
        """An engine is gone: no requests, no versions, and the gate does not wait for it."""
        await self._rollout.forget_engine(name)
        async with self._loop.installing:
            self._journal_left(name, reason)
        await self._loop.engines_changed()

    def _journal_left(self, name: str, reason: str) -> None:
        if name in self._loop.scheduler.engines:
            self._loop.decide(ev.EngineLeft(name, reason))

    def _check_left(self, name: str) -> None:
        if self._loop.manifest is None:
            return  # no engine has joined yet: the first version is told who is there
        if not self._loop.scheduler.engines and not self._starting:
            raise EngineLost(f"{name}, the last engine: {self._dead.get(name, 'gone')}")

    async def _restart_all(self, failed: Sequence[str]) -> None:
        """No engine took a version: a process that lives and cannot be told new weights is of no use."""
        for name in failed:
            if name not in self._starting and name not in self._dead:
                await self._pool.end(name)
        if not failed and self._dead:  # all had died before the first version: no death found that out
            self._check_left(list(self._dead)[-1])

    async def _recover(self, order: EngineOrder) -> None:
        names = [name for name in self._dead if name not in self._starting]
        self._starting.update(names)
        await asyncio.gather(*(self._relaunch(name) for name in names))

    async def _relaunch(self, name: str) -> None:
        """Start a dead engine again, a few times; the log is told when it stays dead. `name` is in `_starting`."""
        wait_s = RELAUNCH_WAIT_S
        try:
            for left in reversed(range(RELAUNCH_TRIES)):
                try:
                    self._dead.pop(name, None)
                    await self._join(name, await self._pool.relaunch(name))
                    if name in self._dead:  # it has died while it joined
                        await self._left(name, self._dead[name])
                        raise EngineLost(self._dead[name])
                    return
                except RelaxError as error:  # whatever it is, the other engines go on
                    self._dead[name] = str(error)
                    logger.warning("engine did not come back engine=%s tries_left=%d error=%s", name, left, error)
                    if left:
                        await self._clock.sleep(wait_s)
                        wait_s *= 2
        finally:
            self._starting.discard(name)

    # ------------------------------------------------------------------ joins and leaves

    async def _join(self, name: str, url: str) -> int:
        """Give an engine the newest version, then work -> the version."""
        loop = self._loop
        await loop.has_version.wait()
        async with loop.installing:
            manifest = loop.manifest
            assert manifest is not None
            status = await self._rollout.join_engine(name, url, manifest)
            if not status.ok:
                await self._rollout.forget_engine(name)
                raise WeightSyncError(f"{name} did not take version {manifest.version}: {status.error}")
            loop.decide(ev.EngineJoined(name, manifest.version))
            try:
                await self._rollout.serve_engine(name)
            except RelaxError as error:
                await self._rollout.forget_engine(name)
                self._journal_left(name, str(error))
                raise
        logger.info("engine joined engine=%s url=%s version=%d", name, url, manifest.version)
        await loop.engines_changed()
        return manifest.version

    async def _scale_out(self, order: EngineOrder) -> None:
        await self._tell(order, status="CREATING")
        names = [self._pool.new_name() for _ in range(order.count)]
        self._starting.update(names)
        limit = order.timeout_s or self._settings.launch_timeout_s
        errors = await asyncio.gather(*(self._add(order, name, limit) for name in names))
        self._starting.difference_update(names)
        failed = {name: error for name, error in zip(names, errors, strict=True) if error is not None}
        status = "ACTIVE" if not failed else "PARTIAL" if len(failed) < len(names) else "FAILED"
        text = "; ".join(f"{name}: {error}" for name, error in failed.items()) or None
        await self._tell(order, status=status, failed_engines=list(failed), error_message=text)

    async def _add(self, order: EngineOrder, name: str, limit_s: float) -> str | None:
        """Start one engine and let it join -> what went wrong."""
        try:
            async with asyncio.timeout(limit_s):
                url = await self._pool.launch(name)
                await self._tell(order, status="WEIGHT_SYNCING")
                version = await self._join(name, url)
                if name in self._dead:
                    await self._left(name, self._dead[name])
                    raise EngineLost(self._dead[name])
        except (RelaxError, TimeoutError) as error:  # told in the request's answer; the run goes on
            text = f"not ready within {limit_s:g} s" if isinstance(error, TimeoutError) else str(error)
            logger.warning("engine did not join engine=%s error=%s", name, text)
            await self._left(name, text)
            await self._pool.remove(name, wait_s=self._settings.shutdown_timeout_s)
            self._dead.pop(name, None)
            return text
        await self._tell(order, engine_ids=[name], engine_urls=[url], weight_version=version)
        return None

    async def _scale_in(self, order: EngineOrder) -> None:
        failed: dict[str, str] = {}
        for name in order.engines:
            try:
                await self._remove(order, name)
            except RelaxError as error:  # told in the request's answer; the run goes on
                failed[name] = str(error)
                logger.warning("engine did not leave in order engine=%s error=%s", name, error)
        text = "; ".join(f"{name}: {error}" for name, error in failed.items()) or None
        status = "FAILED" if failed else "COMPLETED"
        await self._tell(order, status=status, failed_engines=list(failed), error_message=text)

    async def _remove(self, order: EngineOrder, name: str) -> None:
        self._leaving.add(name)
        await self._tell(order, status="DRAINING")
        async with self._loop.installing:
            await self._rollout.retire_engine(name)
            self._journal_left(name, "scale_in")
        await self._loop.engines_changed()
        limit = order.timeout_s or self._settings.drain_timeout_s
        clean = await self._rollout.drain_engine(name, 0.0 if order.force else limit)
        await self._tell(order, status="REMOVING")
        await self._pool.remove(name, wait_s=self._settings.shutdown_timeout_s)
        await self._rollout.forget_engine(name)
        self._dead.pop(name, None)
        logger.info("engine removed engine=%s drained=%s", name, clean)
        await self._tell(order, removed_engines=[name])

    async def _tell(self, order: EngineOrder, **changes: Any) -> None:
        await self._rollout.engine_order_update(order.request_id, changes)
