# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Install one weight version in several engines: pause -> begin -> weights -> end -> resume, all engines at once.

One engine that fails keeps its old version and is named in the report; the others go on. A late joiner is the same
call with one engine.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from relax.distributed.checkpoint_service.base import ADAPTER_NAME, WeightManifest
from relax.distributed.checkpoint_service.gloo import buckets
from relax.schedule.clock import Clock
from relax.utils.errors import WeightSyncError
from relax.utils.faults import pause_at

logger = logging.getLogger(__name__)

PauseMode = Literal["retract", "in_place", "abort"]
Status = Literal["installed", "skipped", "failed"]
Send = Callable[[int, int, str], Awaitable[None]]  # version, number of receivers, group name
CLEAN_UP_S = 10.0  # seconds granted to resume an engine after a failure


class WeightReceiver(Protocol):
    """What an install needs of an engine client. `info()` has a `weight_version`, a string, and a `backend`."""

    url: str

    async def info(self) -> Any: ...

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def weights_begin(self) -> None: ...

    async def weights_from_disk(self, folder: Path, version: int, *, flush: bool = True) -> None: ...

    async def weights_end(self, version: int) -> None: ...

    async def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any: ...


@dataclass(frozen=True)
class EngineInstall:
    """What happened on one engine. Seconds are the caller's clock."""

    url: str
    status: Status
    stall_s: float  # from the pause to the end of resume: no token is generated meanwhile
    total_s: float
    error: str | None = None
    stage: str | None = None  # the call that failed: info, group, pause, begin, weights, end, resume


@dataclass(frozen=True)
class InstallReport:
    version: int
    engines: tuple[EngineInstall, ...]
    sender_error: str | None = None  # of a broadcast

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
            lines += [f"the sender: {self.sender_error}"] if self.sender_error else []
            raise WeightSyncError(f"weight version {self.version} was not installed on {'; '.join(lines)}")


async def install_version(
    manifest: WeightManifest,
    engines: Sequence[WeightReceiver],
    *,
    clock: Clock,
    timeout_s: float,
    pause_mode: PauseMode | None = "retract",
    send: Send | None = None,
) -> InstallReport:
    """Install `manifest` on every engine at once, at most `timeout_s` seconds each; never raises for an engine.

    `pause_mode` None leaves generation running: only for an engine that switches between two decode steps by itself.
    `send` starts the broadcast of a gloo manifest (`GlooPublisher.send` in a thread); it runs beside the receivers.
    """
    broadcast = manifest.transport not in ("shm", "disk")
    if broadcast and send is None:
        raise ValueError(f"a manifest of transport {manifest.transport!r} needs `send`, the call that broadcasts")
    installs = [_Install(manifest, engine, clock, pause_mode, clock.now() + timeout_s) for engine in engines]
    await asyncio.gather(*(install.ask() for install in installs))
    receivers = [install for install in installs if install.status is None]
    sender_error: str | None = None
    if broadcast and send is not None and receivers:
        group = f"weights-v{manifest.version}-{uuid.uuid4().hex[:6]}"
        for rank, install in enumerate(receivers, start=1):
            install.group = _Group(group, rank, len(receivers) + 1)
        sending = asyncio.create_task(_report(send(manifest.version, len(receivers), group), timeout_s))
        await asyncio.gather(*(install.run() for install in receivers))
        sender_error = await sending
    else:
        await asyncio.gather(*(install.run() for install in receivers))
    report = InstallReport(manifest.version, tuple(install.result() for install in installs), sender_error)
    _log(report)
    return report


async def _report(sending: Awaitable[None], timeout_s: float) -> str | None:
    """The sender's error as text."""
    try:
        async with asyncio.timeout(timeout_s):
            await sending
    except TimeoutError:
        return f"did not end within {timeout_s:g} s"
    except Exception as error:  # told to the caller in the report
        return f"{type(error).__name__}: {error}"
    return None


def _log(report: InstallReport) -> None:
    for engine in report.engines:
        facts = (
            f"version={report.version} engine={engine.url} stall_s={engine.stall_s:.4f} total_s={engine.total_s:.4f}"
        )
        if engine.status == "failed":
            logger.warning("weights failed %s stage=%s error=%s", facts, engine.stage, engine.error)
        else:
            logger.info("weights %s %s", engine.status, facts)


@dataclass(frozen=True)
class _Group:
    """An engine's place in a broadcast."""

    name: str
    rank: int
    world_size: int


class _Install:
    """One engine's way through the stages; `stage` names the call that is running."""

    def __init__(
        self,
        manifest: WeightManifest,
        engine: WeightReceiver,
        clock: Clock,
        pause_mode: PauseMode | None,
        deadline: float,
    ) -> None:
        self.status: Status | None = None
        self.group: _Group | None = None
        self._manifest = manifest
        self._engine = engine
        self._clock = clock
        self._pause_mode = pause_mode
        self._start, self._deadline = clock.now(), deadline
        self._stage, self._error = "info", ""
        self._paused_at: float | None = None
        self._joined = False
        self._beside = False  # the engine keeps adapters beside its model, by name
        self._end = self._start

    def result(self) -> EngineInstall:
        stall = 0.0 if self._paused_at is None else self._end - self._paused_at
        failed = self.status == "failed"
        return EngineInstall(
            self._engine.url,
            self.status or "failed",
            stall,
            self._end - self._start,
            self._error if failed else None,
            self._stage if failed else None,
        )

    async def ask(self) -> None:
        """An engine that already serves the version is skipped; one with its very bits is told the number alone."""
        version, adapter = self._manifest.version, self._manifest.adapter

        async def stages() -> None:
            info = await self._engine.info()
            self._beside = adapter is not None and info.backend == "sglang"
            if str(info.weight_version) == str(version):
                self.status = "skipped"
            elif adapter is not None and adapter.stands_since(info.weight_version, version):
                await self._relabel()
                self.status = "installed"

        await self._guard(stages())

    async def run(self) -> None:
        """Install, then leave the engine serving whatever it has."""
        await self._guard(self._stages())
        if self.status == "failed" and self._paused_at is not None:
            await self._clean_up(self._engine.resume(), "resume")
        self._end = self._clock.now()
        if self._joined and self.group is not None:
            leave = self._engine.post("/destroy_weights_update_group", {"group_name": self.group.name})
            await self._clean_up(leave, "leave the group")

    async def _guard(self, stages: Awaitable[None]) -> None:
        left = self._deadline - self._clock.now()
        try:
            async with asyncio.timeout(left):
                await stages
        except TimeoutError:
            self.status, self._error = "failed", f"no answer within {self._deadline - self._start:g} s"
        except Exception as error:  # told to the caller in the report: one engine must not stop the others
            self.status, self._error = "failed", f"{type(error).__name__}: {error}"
        self._end = self._clock.now()

    async def _stages(self) -> None:
        engine, version = self._engine, self._manifest.version
        if self.group is not None:
            self._stage = "group"
            await self._join(self.group)
        if self._pause_mode is not None:
            self._stage, self._paused_at = "pause", self._clock.now()
            # an adapter that a request uses is not unloaded, however long its engine stands still
            mode: PauseMode = "abort" if self._beside else self._pause_mode
            await engine.pause(mode)
        await pause_at("sync")
        if self._beside:
            await self._replace_adapter()
        else:
            self._stage = "begin"
            await engine.weights_begin()
            self._stage = "weights"
            await self._load()
            self._stage = "end"
            await engine.weights_end(version)
        if self._pause_mode is not None:
            self._stage = "resume"
            await engine.resume()
        self.status = "installed"

    async def _join(self, group: _Group) -> None:
        extra = self._manifest.extra
        body = {
            "master_address": extra["master_address"],
            "master_port": extra["master_port"],
            "rank_offset": group.rank,
            "world_size": group.world_size,
            "group_name": group.name,
            "backend": self._manifest.transport,
        }
        _accepted(await self._engine.post("/init_weights_update_group", body))
        self._joined = True

    async def _load(self) -> None:
        manifest = self._manifest
        # Requests that stand still keep their keys and values.
        keep = {"flush": False} if self._pause_mode == "in_place" else {}
        if self.group is not None:
            parts = buckets(manifest, self.group.name)
            for body in parts:
                body["flush_cache"] = not keep
                if body is parts[-1]:  # SGLang takes the version here, the native engine at the end
                    body["weight_version"] = str(manifest.version)
                _accepted(await self._engine.post("/update_weights_from_distributed", body))
        elif manifest.folder is not None:
            await self._engine.weights_from_disk(Path(manifest.folder), manifest.version, **keep)
        else:
            raise WeightSyncError(f"the manifest of version {manifest.version} names no folder")

    async def _replace_adapter(self) -> None:
        """SGLang takes adapters from folders in peft's form; loading one under a name that is taken is refused."""
        self._stage = "weights"
        try:
            await self._engine.post("/unload_lora_adapter", {"lora_name": ADAPTER_NAME})
        except ValueError as error:  # the log is told: there is none at first, and one that stays is refused below
            logger.info("no adapter was unloaded engine=%s answer=%s", self._engine.url, error)
        body = {"lora_name": ADAPTER_NAME, "lora_path": self._manifest.folder}
        _accepted(await self._engine.post("/load_lora_adapter", body))
        await self._relabel()

    async def _relabel(self) -> None:
        """Give the weights in force the version's number."""
        self._stage = "end"
        body = {"new_version": str(self._manifest.version), "abort_all_requests": False}
        _accepted(await self._engine.post("/update_weight_version", body))

    async def _clean_up(self, call: Awaitable[Any], what: str) -> None:
        """A second failure is logged; the report names the engine already."""
        try:
            async with asyncio.timeout(CLEAN_UP_S):
                await call
        except Exception as error:  # the engine's status is told either way
            logger.warning("engine did not %s engine=%s error=%s", what, self._engine.url, error)


def _accepted(answer: Any) -> None:
    """SGLang answers some refusals with status 200 and `success: false`."""
    if isinstance(answer, Mapping) and answer.get("success") is False:
        raise WeightSyncError(f"refused: {answer.get('message', answer)}")
