# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What every process of a run is doing right now, for a run that seems stuck.

    folder/controller-4711.txt    a process that answers, and what it has answered so far
    folder/controller-4711.ask    its named pipe: a line that is written there is answered in the text file

A thread that sleeps on the pipe writes the stacks of all threads, and for each asyncio task what it awaits. Where the
interpreter itself is held up (a C extension keeps its lock), that thread cannot run: then `SIGNAL` makes faulthandler
write the threads' stacks from inside the signal handler. Neither costs anything while nobody asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

FOLDER = "RELAX_STACKS"  # environment: where the processes of this run answer
NAME = "RELAX_PROCESS"  # environment: the name of a process that its parent knows better
SIGNAL = signal.SIGUSR2
SHOWN = ("what", "method", "partition", "tables", "url", "path", "deadline_s")  # locals that say who is waited for
CLOSE = "close"  # the request that ends the answering
AWAITABLES = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
MAX_SHOWN = 120  # characters of such a local, or of what a task waits for


class Answering:
    """This process answers until `close`."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        base = folder / f"{name}-{os.getpid()}"
        self._pipe = base.with_suffix(".ask")
        self._file = open(base.with_suffix(".txt"), "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - until `close`
        self._signal = signal.getsignal(SIGNAL) == signal.SIG_DFL  # else it is somebody else's
        if self._signal:
            faulthandler.register(SIGNAL, file=self._file, all_threads=True, chain=False)
        started = psutil.Process().create_time()
        header = {"process": name, "pid": os.getpid(), "started": started, "signal": self._signal}
        self._file.write(json.dumps(header) + "\n")
        self._thread: threading.Thread | None = None
        with contextlib.suppress(OSError):  # a file system without named pipes: the signal is answered all the same
            os.mkfifo(self._pipe, 0o600)
            pipe = os.open(self._pipe, os.O_RDWR)  # for writing too: so it stays open between two requests
            self._thread = threading.Thread(target=self._answer, args=(pipe,), name="relax-stacks", daemon=True)
            self._thread.start()

    def _answer(self, pipe: int) -> None:
        while True:
            for request in os.read(pipe, 1 << 16).decode().split():  # sleeps until somebody writes
                if request == CLOSE:
                    os.close(pipe)
                    return
                self._write(request)

    def _write(self, request: str) -> None:
        try:
            lines = [*tasks(), *threads()]
        except Exception:  # whoever asked is told
            lines = traceback.format_exc().splitlines()
        self._file.write("\n".join([*lines, end_mark(request), ""]))

    def close(self) -> None:
        """Answer no more. The file stays."""
        if self._signal:
            faulthandler.unregister(SIGNAL)
        if self._thread is not None:
            with contextlib.suppress(OSError):
                ask(self._pipe, CLOSE)
                self._thread.join(5.0)
            self._pipe.unlink(missing_ok=True)
        self._file.close()


_kept: Answering | None = None  # of a process that answers as long as it lives


def answer_as(name: str) -> None:
    """Answer from now on, in a run whose driver collects stacks. A second call in a process is a no-op."""
    global _kept
    folder = os.environ.get(FOLDER)
    if folder and _kept is None:
        _kept = Answering(Path(folder), os.environ.get(NAME) or name)


@contextlib.contextmanager
def answering(folder: Path, name: str) -> Iterator[None]:
    """The driver's side: a fresh folder, which processes that start inside the block inherit by `FOLDER`."""
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = str(folder)
    answers = Answering(folder, name)
    try:
        yield
    finally:
        answers.close()
        _tidy(folder)
        if before is None:
            os.environ.pop(FOLDER, None)
        else:
            os.environ[FOLDER] = before


def _tidy(folder: Path) -> None:
    """Leave what processes have told, and nothing else."""
    for path in folder.iterdir():
        if path.suffix == ".ask" or path.read_bytes().count(b"\n") <= 1:  # a pipe, or a header alone
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def ask(pipe: Path, request: str) -> None:
    """Write a request without waiting. Raises OSError when no process reads the pipe."""
    number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(number, f"{request}\n".encode())
    finally:
        os.close(number)


def end_mark(request: str) -> str:
    return f"-- end of {request}"


# ---------------------------------------------------------------------- what there is to tell


def threads() -> Iterator[str]:
    """The stack of each thread but the one that asks, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"thread {names.get(ident, ident)}"
            for entry in traceback.extract_stack(frame):
                yield f"  {entry.filename}:{entry.lineno} in {entry.name}"


def tasks() -> Iterator[str]:
    """Each unfinished asyncio task of any loop: its awaits from the outermost in, and what the last one waits for."""
    found = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Task) and not each.done()]
    for task in sorted(found, key=lambda task: task.get_name()):
        yield f"task {task.get_name()}"
        for frame in awaits(task.get_coro()):
            shown = "".join(
                f" {name}={value!r:.{MAX_SHOWN}}"
                for name, value in frame.f_locals.items()
                if name in SHOWN and isinstance(value, (str, int, float, tuple, os.PathLike))
            )
            yield f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}{shown}"
        waits_for = getattr(task, "_fut_waiter", None)
        if isinstance(waits_for, asyncio.Task):
            yield f"  waits for task {waits_for.get_name()}"
        elif waits_for is not None:
            yield f"  waits for {type(waits_for).__name__}"


def awaits(awaited: Any) -> Iterator[FrameType]:
    """Frames of a suspended coroutine, each awaiting the next."""
    while awaited is not None:
        kind = next((kind for kind in AWAITABLES if hasattr(awaited, kind[0])), None)
        if kind is None:
            return
        frame, awaited = (getattr(awaited, name) for name in kind)
        if frame is not None:
            yield frame
