# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Idle cores are lent: a process may use those of the compute processes beside it that have nothing to do.

An async run on two cores has an engine and a trainer that are rarely busy for equally long. Each tells that it is at
work by holding a file lock, which the kernel drops when the process dies. A trainer asks at the border of a
micro-batch how many cores it may use, and computes as many micro-batches at a time, each in a thread that computes as
if it were alone: so the bits of a result do not depend on what was lent, as they would with more threads in one matrix
product. An engine does not borrow: a decode step is many small calls, whose threads wait for Python's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "RELAX_CORE_SHARE"  # the folder in which the processes of one run tell that they are at work


class CoreShare:
    """One process's view. Without a folder nothing is shared and one core is granted.

    Args:
        folder: the same for all processes that lend to each other, on one machine.
        cores: how many there are; by default those that the process may run on.
    """

    def __init__(self, folder: Path | None, cores: int | None = None) -> None:
        self.cores = 1 if folder is None else cores or len(os.sched_getaffinity(0))
        self._folder, self._own, self._depth = folder, -1, 0
        self._name = f"{os.getpid()}-{id(self):x}"
        self._others: dict[str, int] = {}
        self._pool: ThreadPoolExecutor | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._own = os.open(folder / self._name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    @classmethod
    def from_environment(cls) -> CoreShare:
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder) if folder else None)

    def begin(self) -> None:
        """Tell that this process is at work. Idempotent."""
        if self._own >= 0 and not self._depth:
            fcntl.flock(self._own, fcntl.LOCK_EX)  # another process holds it for the microseconds of a look at most
        self._depth = 1

    def end(self) -> None:
        """Tell that this process waits. Idempotent."""
        if self._own >= 0 and self._depth:
            fcntl.flock(self._own, fcntl.LOCK_UN)
        self._depth = 0

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    def granted(self) -> int:
        """How many cores this process may use now: its even share among those that are at work, at least one."""
        if self.cores < 2:
            return 1
        busy = sorted(name for name in self._look() if self._at_work(name))
        share, left = divmod(self.cores, len(busy) + 1)
        return max(1, share + (sum(name < self._name for name in busy) < left))

    def in_order(self, work: Callable[[int], T], count: int) -> Iterator[T]:
        """`work(0) .. work(count - 1)`, in this order, as many at a time as cores are granted.

        A result is ahead of the one that is yielded by fewer places than there are cores, which bounds memory. After
        an error no further piece is started.
        """
        if self.cores < 2 or count < 2:
            yield from map(work, range(count))
            return
        running: deque[Future[T]] = deque()
        started = 0
        try:
            while running or started < count:
                active = sum(not future.done() for future in running)
                while started < count and len(running) < self.cores and active < self.granted():
                    running.append(self._threads().submit(work, started))
                    started, active = started + 1, active + 1
                pending = [future for future in running if not future.done()]
                if running[0] in pending:  # a later one that is done would end the wait at once, again and again
                    wait(pending, return_when=FIRST_COMPLETED)
                while running and running[0].done():
                    yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
            wait(running)

    def close(self) -> None:
        """Give the files back. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for descriptor in (self._own, *self._others.values()):
            if descriptor >= 0:
                os.close(descriptor)
        if self._own >= 0 and self._folder is not None:
            (self._folder / self._name).unlink(missing_ok=True)
        self._own, self._others, self._depth = -1, {}, 0
        self.cores = 1

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.cores, thread_name_prefix="core")
        return self._pool

    def _look(self) -> list[str]:
        """Names of the other processes; files of new ones are opened, those of ended ones closed."""
        assert self._folder is not None
        names = {entry.name for entry in os.scandir(self._folder)} - {self._name}
        for name in names - self._others.keys():
            with contextlib.suppress(FileNotFoundError):  # it ended between the two calls
                self._others[name] = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC)
        for name in self._others.keys() - names:
            os.close(self._others.pop(name))
        return list(self._others)

    def _at_work(self, name: str) -> bool:
        try:
            fcntl.flock(self._others[name], fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._others[name], fcntl.LOCK_UN)
        return False
