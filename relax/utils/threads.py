# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Calls of blocking functions in daemon threads that are used again, and given up when a call outlives its caller."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = Callable[[], None]


class _Thread:
    """A daemon thread that runs one piece of work after another."""

    def __init__(self, idle: list[_Thread], name: str) -> None:
        self._idle = idle
        self._work: SimpleQueue[_Work] = SimpleQueue()
        threading.Thread(target=self._main, name=name, daemon=True).start()

    def run(self, work: _Work) -> None:
        self._work.put(work)

    def _main(self) -> None:
        while True:
            self._work.get()()
            self._idle.append(self)


class BlockingCalls:
    """Any number of calls at a time, each in a thread of its own.

    A call never waits for another one: a thread is made whenever all are busy. Unlike an executor's, the threads are
    never joined, so a function that does not return costs its thread and nothing else.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[_Thread] = []

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)` under the caller's context variables; abandoned when the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(function, *arguments)
            except StopIteration as stop:  # a future cannot carry it
                error = RuntimeError(f"the function raised {stop!r}")
            except BaseException as raised:  # the awaiting caller is told
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._free_thread().run(work)
        return await future

    def _free_thread(self) -> _Thread:
        try:
            return self._idle.pop()
        except IndexError:
            return _Thread(self._idle, self._name)
