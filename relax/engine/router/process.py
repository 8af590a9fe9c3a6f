# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The request router as a process of its own: sglang-router in front of the engines, workers joining at run time.

Retries and the circuit breaker are off: who asked decides what is tried again. The router's process watches a pipe
from its parent and ends with it, so no router outlives a run, however the run dies.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from relax.engine.router.workers import CALL_TIMEOUT_S, POLL_S, RouterWorkers
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost, InfrastructureError
from relax.utils.http_utils import request
from relax.utils.processes import end_group, free_ports

logger = logging.getLogger(__name__)

START_TRIES = 3  # a free port may be taken between its choice and its use
WATCH_S = 0.5
STOP_WAIT_S = 5.0


class RouterProcess(RouterWorkers):
    """One router on this machine. Not started until `start`.

    Args:
        clock: time and sleep.
        log_path: the router's output; None: discarded.
        policy: the router's own word. `cache_aware` keeps the samples of a group on one engine, so that its prompt is
            prefilled once.
        host: address to bind.
        request_timeout_s: of one request, engine time included.
        extra_args: flags of the router's own command line, which win over those above.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        log_path: Path | None = None,
        policy: str = "cache_aware",
        host: str = "127.0.0.1",
        request_timeout_s: int = 7200,
        extra_args: Sequence[str] = (),
    ) -> None:
        super().__init__("", clock=clock)  # the address is known once the process has its port
        self._clock, self._log_path, self._policy, self.host = clock, log_path, policy, host
        self._request_timeout_s, self._extra_args = request_timeout_s, tuple(extra_args)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, *, deadline_s: float = 60.0) -> str:
        """Start and wait until it answers -> its URL."""
        end = self._clock.now() + deadline_s
        for left in reversed(range(START_TRIES)):
            self._launch()
            try:
                await self._wait_ready(end)
            except InfrastructureError:
                died = self._process is not None and self._process.poll() is not None
                await self.stop()
                if not died or not left:
                    raise
            except BaseException:
                await self.stop()
                raise
            else:
                logger.info("router ready url=%s pid=%s policy=%s", self.url, self.pid, self._policy)
                return self.url
        raise AssertionError("unreachable")

    def command(self, port: int, prometheus_port: int) -> list[str]:
        """The command line."""
        return [
            sys.executable,
            "-m",
            "relax.engine.router.launch",
            "--host",
            self.host,
            "--port",
            str(port),
            "--policy",
            self._policy,
            "--prometheus-host",
            "127.0.0.1",
            "--prometheus-port",
            str(prometheus_port),
            "--log-level",
            "warn",
            "--disable-retries",
            "--disable-circuit-breaker",
            "--request-timeout-secs",
            str(self._request_timeout_s),
            "--worker-startup-check-interval",
            "1",
            "--shutdown-grace-period-secs",
            "1",
            *self._extra_args,
        ]

    def _launch(self) -> None:
        self.port, prometheus_port = free_ports(self.host, 2)
        log: IO[bytes] | int = subprocess.DEVNULL
        if self._log_path is not None:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            log = self._log_path.open("ab")
        try:
            self._process = subprocess.Popen(
                self.command(self.port, prometheus_port),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        finally:
            if not isinstance(log, int):
                log.close()

    async def _wait_ready(self, end: float) -> None:
        while True:
            self._check_alive()
            try:
                await request("GET", f"{self.url}/workers", None, timeout_s=CALL_TIMEOUT_S, tries=1)
                return
            except EngineLost as error:
                if self._clock.now() >= end:
                    raise EngineLost(
                        f"the router at {self.url} did not answer in time; log: {self._log_path}"
                    ) from error
            await self._clock.sleep(POLL_S)

    def _check_alive(self) -> None:
        code = None if self._process is None else self._process.poll()
        if self._process is None or code is not None:
            raise EngineLost(f"the router is not running (exit code {code}); log: {self._log_path}")

    # ------------------------------------------------------------------ workers

    async def workers(self) -> list[dict[str, Any]]:
        self._check_alive()
        return await super().workers()

    async def wait_ended(self) -> str:
        """Wait until the process ends without having been stopped -> what its end looked like."""
        while True:
            if self._process is not None and (code := self._process.poll()) is not None:
                return f"the router at {self.url} ended with exit code {code}; log: {self._log_path}"
            await self._clock.sleep(WATCH_S)

    async def stop(self) -> None:
        """End the process and wait for it. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        await end_group(process, self._clock, wait_s=STOP_WAIT_S)
        if process.stdin is not None:
            process.stdin.close()
