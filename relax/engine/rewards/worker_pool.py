# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Processes that run scoring code which may hang, crash or eat memory: a call past its limit is killed."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import struct
import sys
from typing import Any

from relax.utils.errors import RelaxError

logger = logging.getLogger(__name__)
LOAD_TIMEOUT_S = 120.0  # starting Python and importing the function, on a busy machine


class ScoringTimeout(RelaxError):
    """Scoring one sample took longer than its limit; what ran it has been ended or abandoned."""


class ScoringFailed(RelaxError):
    """The scoring code raised, or its process died. The message ends with the traceback where there is one."""


class _Worker:
    """One live process and the paths that it has imported."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.loaded: set[str] = set()

    async def request(self, message: tuple[Any, ...]) -> tuple[str, Any]:
        data = pickle.dumps(message)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        await self.process.stdin.drain()
        (size,) = struct.unpack("<I", await self.process.stdout.readexactly(4))
        return pickle.loads(await self.process.stdout.readexactly(size))

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class WorkerPool:
    """At most `size` processes, started when first needed, each running one call at a time."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    async def call(self, path: str, *arguments: Any, timeout_s: float) -> Any:
        """`path(*arguments)` in a worker. Raises `ScoringTimeout` or `ScoringFailed`; either way the pool goes on.

        The limit does not include waiting for a free worker, its start and its imports.
        """
        async with self._free:
            if self._closed:
                raise ScoringFailed(f"{path}: the pool is closed")
            worker = self._idle.pop() if self._idle else await self._start()
            self._busy.add(worker)
            clean = False
            try:
                if path not in worker.loaded:
                    self._value(path, await self._within(worker, ("load", path), LOAD_TIMEOUT_S))
                    worker.loaded.add(path)
                result = await self._within(worker, ("call", path, arguments, timeout_s), timeout_s)
                clean = True
                return self._value(path, result)
            finally:
                self._busy.discard(worker)
                if clean and not self._closed:
                    self._idle.append(worker)
                else:  # an answer may be on its way: this process cannot be used again
                    await worker.kill()

    async def _start(self) -> _Worker:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path))
        environment.setdefault("OMP_NUM_THREADS", "1")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relax.engine.rewards.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        logger.info("reward worker started pid=%d", process.pid)
        return _Worker(process)

    @staticmethod
    async def _within(worker: _Worker, message: tuple[Any, ...], limit_s: float) -> tuple[str, Any]:
        path = message[1]
        try:
            async with asyncio.timeout(limit_s):
                return await worker.request(message)
        except TimeoutError:
            raise ScoringTimeout(f"{path} took longer than {limit_s:g} s; its process was ended") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await worker.process.wait()
            raise ScoringFailed(f"{path}: its process ended with code {code}") from None

    @staticmethod
    def _value(path: str, result: tuple[str, Any]) -> Any:
        kind, value = result
        if kind == "error":
            raise ScoringFailed(f"{path} failed\n{value}")
        return value

    async def close(self) -> None:
        """End every worker. Calls that still run raise `ScoringFailed`."""
        self._closed = True
        workers = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(worker.kill() for worker in workers))
