# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engines that a rollout role owns: control calls go to each engine directly, never through the router."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from relax.backends.base import EngineClient, PauseMode
from relax.components.messages import EngineStatus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.checkpoint_service.updater import Send, install_version
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost


class WorkerList(Protocol):
    """The router's list of engines that get requests."""

    async def add_worker(self, url: str) -> None: ...

    async def remove_worker(self, url: str) -> None: ...


class EngineFleet:
    """Engines by name. An engine that missed a version gets no requests until an install succeeds: `workers` is told.

     `pause_mode` is what an install does to running requests:

    retract   requests give up their KV cache and go on under the new weights with a fresh prefill (default: every
              token's log-prob is that of one version's forward)
    in_place  requests go on with the old KV cache
    abort     requests end and are generated again
    """

    def __init__(
        self,
        engines: Mapping[str, EngineClient],
        *,
        clock: Clock,
        timeout_s: float = 300.0,
        pause_mode: PauseMode = "retract",
        workers: WorkerList | None = None,
        send: Send | None = None,
    ) -> None:
        self._engines = dict(engines)
        self._workers, self._send = workers, send
        self._behind: set[str] = set()  # engines that missed a version
        self._asleep = False
        self._clock, self._timeout_s, self._pause_mode = clock, timeout_s, pause_mode

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._engines)

    def add(self, name: str, client: EngineClient) -> None:
        self._engines[name] = client

    def remove(self, name: str) -> EngineClient | None:
        return self._engines.pop(name, None)

    async def abort(self, rid: str | None = None) -> None:
        """Abort one request, or all, on every engine. Raises EngineLost when none of them could be reached."""
        results = await asyncio.gather(*(e.abort(rid) for e in self._engines.values()), return_exceptions=True)
        failed = [r for r in results if isinstance(r, BaseException)]
        unexpected = [r for r in failed if not isinstance(r, EngineLost)]
        if unexpected:
            raise unexpected[0]
        if failed and len(failed) == len(results):
            raise EngineLost(f"no engine took the abort: {failed[0]}")

    async def install(self, manifest: WeightManifest) -> tuple[EngineStatus, ...]:
        """Install a version everywhere; an engine that fails keeps its old version and is reported as not ok."""
        names = list(self._engines)
        clients = [self._engines[name] for name in names]
        # a sleeping engine is paused already, and may not go on before its KV cache is back
        mode = None if self._asleep else self._pause_mode
        report = await install_version(
            manifest,
            clients,
            clock=self._clock,
            timeout_s=self._timeout_s,
            pause_mode=mode,
            send=self._send if manifest.folder is None else None,
        )
        for name, result in zip(names, report.engines, strict=True):
            await self._list(name, serves=result.status != "failed")
        return tuple(
            EngineStatus(name, manifest.version, result.status != "failed", result.stall_s, result.error)
            for name, result in zip(names, report.engines, strict=True)
        )

    async def _list(self, name: str, *, serves: bool) -> None:
        if self._workers is None or serves == (name not in self._behind):
            return
        url = self._engines[name].url
        if serves:
            await self._workers.add_worker(url)
            self._behind.discard(name)
        else:
            await self._workers.remove_worker(url)
            self._behind.add(name)

    async def offload(self) -> None:
        """Abort, flush and sleep, in this order: an engine may only give up memory that nothing uses."""
        self._asleep = True
        for engine in self._engines.values():
            await engine.pause("abort")
            await engine.flush()
            await engine.sleep()

    async def onload(self, tags: tuple[str, ...]) -> None:
        """Wake `tags`; with the KV cache back, generation goes on."""
        for engine in self._engines.values():
            await engine.wake(tags)
            if "kv_cache" in tags:
                await engine.resume()
        if "kv_cache" in tags:
            self._asleep = False

    async def status(self) -> dict[str, object]:
        """{name: url, version, health, exactness} of every engine, asked now."""
        infos = await asyncio.gather(*(e.info() for e in self._engines.values()), return_exceptions=True)
        out: dict[str, object] = {}
        for (name, client), info in zip(self._engines.items(), infos, strict=True):
            lost = isinstance(info, BaseException)
            out[name] = {
                "url": client.url,
                "status": "unhealthy" if lost else "active",
                "is_healthy": not lost,
                "weight_version": None if lost else info.weight_version,  # type: ignore[union-attr]
                "exact": not lost and info.exact,  # type: ignore[union-attr]
                "exact_reason": f"no answer: {info}" if lost else info.exact_reason,  # type: ignore[union-attr]
            }
        return out

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))
