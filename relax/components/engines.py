# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engines that a rollout role owns: control calls go to each engine directly, never through the router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from relax.backends.base import EngineClient, EngineInfo, PauseMode
from relax.components.messages import EngineStatus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.checkpoint_service.updater import Send, install_version
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost, InfrastructureError, InternalError

logger = logging.getLogger(__name__)

DRAIN_POLL_S = 0.1
Connect = Callable[[str, str], EngineClient]  # name, url


class WorkerList(Protocol):
    """The router's list of engines that get requests."""

    async def add_worker(self, url: str) -> None: ...

    async def remove_worker(self, url: str) -> None: ...


class EngineFleet:
    """Engines by name. An engine that missed a version gets no requests until an install succeeds: `workers` is told.

    A joining engine is `add`ed, takes the newest version by `install([name])` and is listed by `serve`. A leaving one
    is `retire`d: no new requests; then `drain`ed, and `forget`ten when its process is gone.

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
        connect: Connect | None = None,
    ) -> None:
        self._engines = dict(engines)
        self._leaving: dict[str, EngineClient] = {}
        self._workers, self._send, self._connect = workers, send, connect
        self._behind: set[str] = set()  # engines that missed a version
        self._asleep = False
        self._clock, self._timeout_s, self._pause_mode = clock, timeout_s, pause_mode

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._engines)

    @property
    def urls(self) -> dict[str, str]:
        """{engine: url} in the order of joining."""
        return {name: engine.url for name, engine in self._engines.items()}

    @property
    def serving(self) -> list[str]:
        """URLs of the engines that get requests."""
        if self._asleep:
            return []
        return [engine.url for name, engine in self._engines.items() if name not in self._behind]

    # ------------------------------------------------------------------ joining and leaving

    async def add(self, name: str, url: str) -> None:
        """Take an engine in that holds no version yet: it gets no requests before `serve`."""
        if self._connect is None:
            raise InternalError(f"{name} cannot join: this fleet was made without a way to connect to engines")
        await self.forget(name)  # an earlier process of the same name
        self._engines[name] = self._connect(name, url)
        self._behind.add(name)

    async def serve(self, name: str) -> None:
        """Give requests to an engine that holds the newest version. Raises EngineLost when the router cannot."""
        await self._list(name, serves=True)

    async def retire(self, name: str) -> None:
        """No new requests and no further versions for an engine; those that run go on."""
        engine = self._engines.pop(name, None)
        if engine is None:
            return
        self._leaving[name] = engine
        listed, _ = name not in self._behind, self._behind.discard(name)
        if listed and self._workers is not None:
            await self._workers.remove_worker(engine.url)

    async def drain(self, name: str, timeout_s: float) -> bool:
        """Wait until a retired engine runs nothing, then abort what is left -> whether nothing had to be aborted.

        An aborted request ends as interrupted and is generated again elsewhere. An engine that does not tell how many
        requests it runs gets the whole time.
        """
        engine, end = self._leaving[name], self._clock.now() + timeout_s
        while self._clock.now() < end:
            try:
                if (await engine.info()).running_requests == 0:
                    return True
            except InfrastructureError as error:  # the log is told: a dead engine runs nothing
                logger.warning("engine died while it drained engine=%s error=%s", name, error)
                return False
            await self._clock.sleep(DRAIN_POLL_S)
        try:
            await engine.abort()
        except InfrastructureError as error:  # as above
            logger.warning("engine took no abort engine=%s error=%s", name, error)
        return False

    async def forget(self, name: str) -> None:
        """Close the connection to an engine whose process has ended or is about to."""
        await self.retire(name)
        engine = self._leaving.pop(name, None)
        if engine is not None:
            await engine.close()

    # ------------------------------------------------------------------ all of them

    async def abort(self, rid: str | None = None) -> None:
        """Abort one request, or all, on every engine. Raises EngineLost when none of them could be reached."""
        engines = [*self._engines.values(), *self._leaving.values()]
        results = await asyncio.gather(*(engine.abort(rid) for engine in engines), return_exceptions=True)
        failed = [r for r in results if isinstance(r, BaseException)]
        unexpected = [r for r in failed if not isinstance(r, EngineLost)]
        if unexpected:
            raise unexpected[0]
        if failed and len(failed) == len(results):
            raise EngineLost(f"no engine took the abort: {failed[0]}")

    async def install(self, manifest: WeightManifest) -> tuple[EngineStatus, ...]:
        """Install a version everywhere; an engine that fails keeps its old version and is reported as not ok."""
        statuses = await self.install_on(list(self._engines), manifest)
        for status in statuses:
            await self._list(status.engine, serves=status.ok)
        return statuses

    async def install_on(self, names: Sequence[str], manifest: WeightManifest) -> tuple[EngineStatus, ...]:
        """Install a version on these engines; who gets requests stays as it is."""
        # a sleeping engine is paused already, and may not go on before its KV cache is back
        mode = None if self._asleep else self._pause_mode
        report = await install_version(
            manifest,
            [self._engines[name] for name in names],
            clock=self._clock,
            timeout_s=self._timeout_s,
            pause_mode=mode,
            send=self._send if manifest.folder is None else None,
        )
        return tuple(
            EngineStatus(name, manifest.version, result.status != "failed", result.stall_s, result.error)
            for name, result in zip(names, report.engines, strict=True)
        )

    async def _list(self, name: str, *, serves: bool) -> None:
        if name not in self._engines:  # it left during the install
            return
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
        """{name: url, version, health, exactness} of every engine, asked now.

        `status` is active (gets requests), behind (no requests until it takes a version), draining or unhealthy.
        """
        engines = {**self._engines, **self._leaving}
        infos = await asyncio.gather(*(e.info() for e in engines.values()), return_exceptions=True)
        return {
            name: self._status_of(name, client.url, info)
            for (name, client), info in zip(engines.items(), infos, strict=True)
        }

    def _status_of(self, name: str, url: str, info: EngineInfo | BaseException) -> dict[str, object]:
        out: dict[str, object] = {"url": url, "status": "unhealthy", "is_healthy": False, "weight_version": None}
        if isinstance(info, BaseException):
            return {**out, "exact": False, "exact_reason": f"no answer: {info}"}
        word = "draining" if name in self._leaving else "behind" if name in self._behind else "active"
        return {
            **out,
            "status": word,
            "is_healthy": True,
            "weight_version": info.weight_version,
            "running_requests": info.running_requests,
            "exact": info.exact,
            "exact_reason": info.exact_reason,
        }

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in (*self._engines.values(), *self._leaving.values())))
