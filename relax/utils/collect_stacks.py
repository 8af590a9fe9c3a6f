# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Ask every process of a run for its stacks; see `stacks.py` for the side that answers."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from relax.utils.stacks import SIGNAL, ask, end_mark

ANSWER_S = 5.0  # for a process that runs but has much to do
SIGNAL_S = 2.0  # for the signal handler of one whose interpreter is held up
QUIET_S = 0.2  # a signal handler that has written nothing for so long has told all
POLL_S = 0.02
SAME_START_S = 2.0  # a process that started at another time has taken over the number of one that is gone


@dataclass
class Stacks:
    """One process and what it has told."""

    process: str
    pid: int
    path: Path
    signal: bool  # it may be sent `SIGNAL`
    before: int  # bytes of the file that are older than the request
    state: str = "silent"  # "answered" | "threads only" (its interpreter is held up) | "silent"

    @property
    def new(self) -> str:
        with open(self.path, "rb") as file:
            file.seek(self.before)
            return file.read().decode(errors="replace")


def collect(folder: Path, *, answer_s: float = ANSWER_S, signal_s: float = SIGNAL_S) -> list[Stacks]:
    """The stacks of all processes that live and answer below `folder`, in the order of their names. Blocks."""
    request = f"r{os.getpid()}-{time.monotonic_ns()}"
    found = sorted(living(folder), key=lambda stacks: (stacks.process, stacks.pid))
    mark = end_mark(request)
    for stacks in found:
        with contextlib.suppress(OSError):  # no pipe, or nobody reads it: told by the state
            ask(stacks.path.with_suffix(".ask"), request)
    _settle(found, "answered", lambda stacks: mark in stacks.new, answer_s)
    silent = [stacks for stacks in found if stacks.state == "silent" and stacks.signal]
    for stacks in silent:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(stacks.pid, SIGNAL)
    quiet: dict[int, tuple[str, float]] = {}  # what each had told, and since when nothing came after it

    def told(stacks: Stacks) -> bool:
        text, now = stacks.new, time.monotonic()
        if text != quiet.get(stacks.pid, ("", now))[0]:
            quiet[stacks.pid] = (text, now)
        return bool(text) and now - quiet[stacks.pid][1] > QUIET_S

    _settle(silent, "threads only", told, signal_s)
    return found


def living(folder: Path) -> Iterator[Stacks]:
    """Processes that have said below `folder` that they answer, and have not ended."""
    for path in folder.glob("*.txt"):
        with contextlib.suppress(ValueError, KeyError, psutil.Error):  # no header yet, or the process has ended
            with open(path, encoding="utf-8") as file:
                header = json.loads(file.readline())
            process = psutil.Process(header["pid"])
            ended = process.status() == psutil.STATUS_ZOMBIE
            if not ended and abs(process.create_time() - header["started"]) < SAME_START_S:
                yield Stacks(header["process"], header["pid"], path, header["signal"], path.stat().st_size)


def _settle(waiting: Sequence[Stacks], state: str, done: Callable[[Stacks], bool], limit_s: float) -> None:
    """Give `state` to those that are done within `limit_s`."""
    left, end = list(waiting), time.monotonic() + limit_s
    while left and time.monotonic() < end:
        for stacks in [each for each in left if done(each)]:
            stacks.state = state
            left.remove(stacks)
        time.sleep(POLL_S if left else 0.0)


def report(found: Sequence[Stacks]) -> str:
    """A line a process, then what each has told."""
    width = max((len(stacks.process) for stacks in found), default=0)
    lines = [f"{stacks.process:<{width}}  pid {stacks.pid:<8} {stacks.state}" for stacks in found]
    for stacks in found:
        told = [line for line in stacks.new.splitlines() if not line.startswith(end_mark(""))]
        lines += ["", f"== {stacks.process} pid {stacks.pid}: {stacks.state}", *told]
    return "\n".join(lines) + "\n"
