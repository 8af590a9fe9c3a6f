# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engine's one worker thread: it owns the scheduler, so that the event loop never waits for a forward.

Control calls are functions that run between two decode steps; whatever they do is atomic for every response.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from relax.backends.native.batch import Response
from relax.backends.native.scheduler import Scheduler
from relax.utils.cores import CoreShare
from relax.utils.faults import reach

T = TypeVar("T")
logger = logging.getLogger(__name__)

QUIET_S = 0.002  # an idle engine starts when no request has arrived for this long ...
GATHER_S = 0.02  # ... or this long after the first one


class EngineFailed(RuntimeError):
    """The worker thread has stopped on an error; the engine must be started again."""


class EngineLoop:
    """Runs a scheduler; `failed` holds the error that stopped it. `cores` is told when there is work."""

    def __init__(self, scheduler: Scheduler, cores: CoreShare | None = None) -> None:
        self.scheduler = scheduler
        self._cores = cores or CoreShare(None)
        self.failed: BaseException | None = None
        self._commands: deque[tuple[Callable[[Scheduler], Any], _Reply]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[Scheduler], T]) -> T:
        """Call `function(scheduler)` between two decode steps and return what it returns."""
        reply = _Reply()
        self._put(function, reply)
        return await reply.future

    async def generate(self, responses: list[Response]) -> list[Response]:
        """Submit responses together and wait until all are finished; cancelling aborts them."""
        for response in responses:
            response.reply = _Reply()

        def submit(scheduler: Scheduler) -> None:
            for response in responses:  # all or none
                scheduler.check_size(len(response.prompt), response.params.max_new_tokens)
            for response in responses:
                scheduler.submit(response)

        try:
            await self.run(submit)
            return list(await asyncio.gather(*(r.reply.future for r in responses)))
        except asyncio.CancelledError:
            self._put(lambda scheduler: [scheduler.abort(r.rid, "client went away") for r in responses], None)
            raise

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop the thread after the step in progress. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    # ------------------------------------------------------------------ thread

    def _put(self, function: Callable[[Scheduler], Any], reply: _Reply | None) -> None:
        if self.failed is not None:
            raise EngineFailed(f"the engine has stopped: {self.failed!r}")
        with self._wake:
            if self._closing:
                raise EngineFailed("the engine is closing")
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="native-engine", daemon=True)
                self._thread.start()
            self._commands.append((function, reply))
            self._wake.notify()

    def _main(self) -> None:
        try:
            while self._wait():
                self._obey()
                if self.scheduler.has_work:
                    self._gather()
                    self._cores.begin()
                    reach("decode_step")
                    self.scheduler.step()
                self._deliver()
        except BaseException as error:  # told to every waiting request, to /health and to the log
            logger.exception("native engine stopped")
            self.failed = error
        self._cores.end()
        self._fail_all(self.failed or EngineFailed("the engine is closing"))

    def _wait(self) -> bool:
        with self._wake:
            if not self.scheduler.has_work:
                self._cores.end()
            self._wake.wait_for(lambda: self._commands or self._closing or self.scheduler.has_work)
            return not self._closing

    def _gather(self) -> None:
        """Let an idle engine collect requests that arrive together, so that they share their first steps."""
        if self.scheduler.batch.size:
            return
        waited = 0.0
        while waited < GATHER_S and len(self.scheduler.waiting) < self.scheduler.max_running:
            with self._wake:
                arrived = self._wake.wait_for(lambda: self._commands or self._closing, QUIET_S)
            if not arrived or self._closing:
                return
            waited += QUIET_S
            self._obey()

    def _obey(self) -> None:
        while self._commands:
            function, reply = self._commands.popleft()
            try:
                result = function(self.scheduler)
            except Exception as error:  # told to the caller
                if reply is not None:
                    reply.set_exception(error)
            else:
                if reply is not None:
                    reply.set(result)

    def _deliver(self) -> None:
        for response in self.scheduler.take_finished():
            response.reply.set(response)

    def _fail_all(self, error: BaseException) -> None:
        with self._wake:
            self._closing = True
        self._obey_none(error)
        scheduler = self.scheduler
        for response in [*scheduler.take_finished(), *scheduler.waiting, *scheduler.batch.responses]:
            response.reply.set_exception(EngineFailed(f"the engine has stopped: {error!r}"))

    def _obey_none(self, error: BaseException) -> None:
        while self._commands:
            _, reply = self._commands.popleft()
            if reply is not None:
                reply.set_exception(EngineFailed(f"the engine has stopped: {error!r}"))


class _Reply:
    """A future of the caller's event loop that the worker thread completes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def set(self, result: Any) -> None:
        self._soon(lambda: self.future.done() or self.future.set_result(result))

    def set_exception(self, error: BaseException) -> None:
        self._soon(lambda: self.future.done() or self.future.set_exception(error))

    def _soon(self, action: Callable[[], Any]) -> None:
        if not self._loop.is_closed():  # a closed loop has nobody left to tell
            self._loop.call_soon_threadsafe(action)
