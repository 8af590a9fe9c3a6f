# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""CPU seconds of this process and of everything that it started, daemons included (Linux).

Two counts are kept and the larger one is reported, since each misses something: the kernel's sum over children that
were waited for misses processes still alive and those that a parent does not wait for; reading /proc misses what a
process did after it was last read.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


class ProcessStat(NamedTuple):
    pid: int
    parent: int
    started: int  # ticks since boot: with the pid it identifies a process
    cpu_s: float  # its own, children excluded


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent dies, so that daemons stay countable. False if refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def read_stat(text: str) -> ProcessStat:
    """Parse `/proc/<pid>/stat`; the command name may hold spaces and brackets."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    pid = int(head.split(" ", 1)[0])
    return ProcessStat(pid, int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


def descendants(root: int) -> list[ProcessStat]:
    """`root` and all processes below it that exist now."""
    stats = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = read_stat(Path(entry.path, "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended between the listing and the reading
            stats[stat.pid] = stat
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        if pid in stats:
            found.append(stats[pid])
            todo += children.get(pid, ())
    return found


class CpuMeter:
    """Counts from construction on; `interval_s` is how stale a daemon's last reading may be."""

    def __init__(self, interval_s: float = 0.5) -> None:
        adopt_orphans()
        self._seen: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()
        self._base = self._read()
        self._waited_base = _waited()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(interval_s,), name="cpu-meter", daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """CPU seconds so far."""
        return max(self._read() - self._base, _waited() - self._waited_base)

    def close(self) -> float:
        """Stop sampling and return the total."""
        self._stop.set()
        self._thread.join()
        return self.seconds()

    def _read(self) -> float:
        with self._lock:
            for stat in descendants(os.getpid()):
                self._seen[stat.pid, stat.started] = stat.cpu_s
            return sum(self._seen.values())

    def _run(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            self._read()


def _waited() -> float:
    """This process and the children that it has waited for, with theirs."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
