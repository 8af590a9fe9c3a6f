# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One engine as a process of its own: port, log, process group, readiness, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from relax.backends.base import EngineCommand, EngineConfig, EngineSpec
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost
from relax.utils.processes import end_group, free_ports
from relax.utils.stacks import NAME as PROCESS_NAME

POLL_S = 0.05
WATCH_S = 0.5
STOP_WAIT_S = 10.0
LOG_TAIL_LINES = 15
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class EngineProcess:
    """Starts an engine and waits until it answers. Hosted by a worker; the engine dies with that worker."""

    name = "engine"

    def __init__(
        self,
        spec: EngineSpec,
        config: EngineConfig,
        *,
        clock: Clock,
        host: str = "127.0.0.1",
        gpus: Sequence[int] = (),
        start_timeout_s: float = 3600.0,
    ) -> None:
        self._spec, self._config, self._clock, self._host, self._gpus = spec, config, clock, host, gpus
        self._timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_path = "/health"
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    async def start(self) -> str:
        """Start the process -> its URL, once its readiness route answers 200."""
        end = self._clock.now() + self._timeout_s
        try:
            if self._spec.name == "native":
                await self._start_with_port_file(end)
            else:
                (self.port,) = free_ports(self._host, 1)
                command = self._spec.command(
                    self._config, host=self._host, port=self.port, gpus=self._gpus, node_rank=0
                )
                self._launch(command, ())
            await self._wait_ready(end)
        except BaseException:
            await self.stop()
            raise
        return self.url

    async def _start_with_port_file(self, end: float) -> None:
        """The engine binds a free port itself and tells it through a file, so no other process can take it between."""
        command = self._spec.command(self._config, host=self._host, port=0, gpus=self._gpus, node_rank=0)
        with tempfile.TemporaryDirectory(prefix="relax-engine-") as folder:
            path = Path(folder) / "port"
            self._launch(command, ("--port-file", str(path)))
            while not path.exists():
                self._check(end)
                await self._clock.sleep(POLL_S)
            self.port = int(path.read_text())

    def _launch(self, command: EngineCommand, extra: Sequence[str]) -> None:
        self._ready_path = command.ready_path
        log: IO[bytes] | int = subprocess.DEVNULL
        if self._config.log_path is not None:
            self._config.log_path.parent.mkdir(parents=True, exist_ok=True)
            log = open(self._config.log_path, "ab")  # noqa: SIM115 - closed below, once the child has it
        try:
            self._process = subprocess.Popen(
                [*command.argv, *extra],
                env={**os.environ, **command.env, **self._name()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        finally:
            if not isinstance(log, int):
                log.close()

    def _name(self) -> dict[str, str]:
        """How the process calls itself where it answers (relax/utils/stacks.py): as its log file."""
        return {} if self._config.log_path is None else {PROCESS_NAME: self._config.log_path.stem}

    async def _wait_ready(self, end: float) -> None:
        import aiohttp

        path = self._ready_path
        timeout = aiohttp.ClientTimeout(total=10.0)
        async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
            while True:
                self._check(end)
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(self.url + path) as reply:
                        if reply.status == 200:
                            return
                await self._clock.sleep(POLL_S)

    def _check(self, end: float) -> None:
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise EngineLost(f"the engine ended with exit code {code} before it was ready{self._log_tail()}")
        if self._clock.now() >= end:
            limit = f"{self._timeout_s:g} s (--rollout-engine-init-timeout)"
            raise EngineLost(f"the engine was not ready within {limit}{self._log_tail()}")

    def _log_tail(self) -> str:
        path = self._config.log_path
        if path is None or not path.exists():
            return ""
        lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return f"; the end of {path}:\n" + "\n".join(lines)

    async def status(self) -> dict[str, Any]:
        running = self._process is not None and self._process.poll() is None
        return {"url": self.url, "running": running, "pid": None if self._process is None else self._process.pid}

    async def wait_ended(self) -> str | None:
        """Wait until the process ends -> what its end looked like, or None when `stop` ended it."""
        while (process := self._process) is not None:
            code = process.poll()
            if code is not None:
                return f"the engine at {self.url} ended with exit code {code}{self._log_tail()}"
            await self._clock.sleep(WATCH_S)
        return None

    async def stop(self) -> None:
        """End the process group and wait for it. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        await end_group(process, self._clock, wait_s=STOP_WAIT_S)


def _die_with_parent() -> Callable[[], None] | None:
    """What a child runs first so that the kernel kills it when its parent is gone. Linux only; None elsewhere."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
