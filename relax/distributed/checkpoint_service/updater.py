# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Install one weight version in several engines: pause -> begin -> weights -> end -> resume, all engines at once.

One engine that fails keeps its old version and is named in the report; the others go on. A late joiner is the same
call with one engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule.clock import Clock
from relax.utils.errors import WeightSyncError

logger = logging.getLogger(__name__)

PauseMode = Literal["retract", "in_place", "abort"]
CLEAN_UP_S = 10.0  # seconds granted to resume an engine after a failure


class WeightReceiver(Protocol):
    """What an install needs of an engine client. `info()` has a `weight_version`, a string."""

    url: str

    async def info(self) -> Any: ...

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def weights_begin(self) -> None: ...

    async def weights_from_disk(self, folder: Path, version: int) -> None: ...

    async def weights_end(self, version: int) -> None: ...

    async def post(self, path: str, payload: Any = None) -> Any: ...


@dataclass(frozen=True)
class EngineInstall:
    """What happened on one engine. Seconds are the caller's clock."""

    url: str
    status: Literal["installed", "skipped", "failed"]
    stall_s: float  # from the pause to the end of resume: no token is generated meanwhile
    total_s: float
    error: str | None = None
    stage: str | None = None  # the call that failed: info, pause, begin, weights, end, resume


@dataclass(frozen=True)
class InstallReport:
    version: int
    engines: tuple[EngineInstall, ...]

    @property
    def current(self) -> tuple[str, ...]:
        """Engines that now serve the version."""
        return tuple(engine.url for engine in self.engines if engine.status != "failed")

    @property
    def failed(self) -> tuple[str, ...]:
        """Engines that keep an older version and must get no new work until an install succeeds."""
        return tuple(engine.url for engine in self.engines if engine.status == "failed")

    def check(self) -> None:
        """Raise `WeightSyncError` naming every engine that failed, the stage and the reason."""
        if self.failed:
            lines = [f"{e.url} in {e.stage}: {e.error}" for e in self.engines if e.status == "failed"]
            raise WeightSyncError(f"weight version {self.version} was not installed on {'; '.join(lines)}")


async def install_version(
    manifest: WeightManifest,
    engines: Sequence[WeightReceiver],
    *,
    clock: Clock,
    timeout_s: float,
    pause_mode: PauseMode | None = "retract",
) -> InstallReport:
    """Install `manifest` on every engine at once, at most `timeout_s` seconds each; never raises for an engine.

    `pause_mode` None leaves generation running: only for an engine that switches between two decode steps by itself.
    """
    installs = [
        _Install(manifest, engine, place, len(engines), clock, pause_mode).run(timeout_s)
        for place, engine in enumerate(engines)
    ]
    report = InstallReport(manifest.version, tuple(await asyncio.gather(*installs)))
    for engine in report.engines:
        if engine.status == "failed":
            logger.warning(
                "weights not installed version=%d engine=%s stage=%s error=%s",
                manifest.version,
                engine.url,
                engine.stage,
                engine.error,
            )
        else:
            logger.info(
                "weights %s version=%d engine=%s stall_s=%.4f",
                engine.status,
                manifest.version,
                engine.url,
                engine.stall_s,
            )
    return report


class _Install:
    """One engine's way through the stages; `stage` names the call that is running."""

    def __init__(
        self,
        manifest: WeightManifest,
        engine: WeightReceiver,
        place: int,
        num_engines: int,
        clock: Clock,
        pause_mode: PauseMode | None,
    ) -> None:
        self._manifest = manifest
        self._engine = engine
        self._place = place
        self._num_engines = num_engines
        self._clock = clock
        self._pause_mode = pause_mode
        self._stage = "info"
        self._paused_at: float | None = None

    async def run(self, timeout_s: float) -> EngineInstall:
        start, error = self._clock.now(), None
        status: Literal["installed", "skipped", "failed"] = "failed"
        try:
            async with asyncio.timeout(timeout_s):
                status = await self._stages()
        except TimeoutError:
            error = f"no answer within {timeout_s:g} s"
        except Exception as caught:  # told to the caller in the report: one engine must not stop the others
            error = f"{type(caught).__name__}: {caught}"
        failed_stage = self._stage if error else None
        if error and self._paused_at is not None:
            await self._clean_up()
        end = self._clock.now()
        stall = 0.0 if self._paused_at is None else end - self._paused_at
        return EngineInstall(self._engine.url, status, stall, end - start, error, failed_stage)

    async def _stages(self) -> Literal["installed", "skipped"]:
        engine, version = self._engine, self._manifest.version
        if str((await engine.info()).weight_version) == str(version):
            return "skipped"
        if self._pause_mode is not None:
            self._stage, self._paused_at = "pause", self._clock.now()
            await engine.pause(self._pause_mode)
        self._stage = "begin"
        await engine.weights_begin()
        self._stage = "weights"
        await self._load()
        self._stage = "end"
        await engine.weights_end(version)
        if self._pause_mode is not None:
            self._stage = "resume"
            await engine.resume()
        return "installed"

    async def _load(self) -> None:
        manifest = self._manifest
        if manifest.transport in ("shm", "disk"):
            if manifest.folder is None:
                raise WeightSyncError(f"the manifest of version {manifest.version} names no folder")
            await self._engine.weights_from_disk(Path(manifest.folder), manifest.version)
            return
        raise WeightSyncError(f"weights by {manifest.transport!r} cannot be installed by this call")

    async def _clean_up(self) -> None:
        """Let the engine serve on with what it has. A second failure is logged; the report already names the engine."""
        try:
            async with asyncio.timeout(CLEAN_UP_S):
                await self._engine.resume()
        except Exception as error:  # the engine is reported as failed either way
            logger.warning("engine did not resume engine=%s error=%s", self._engine.url, error)
