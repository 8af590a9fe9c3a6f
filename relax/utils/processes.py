# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Ends of child processes and free ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import Protocol


class Timer(Protocol):
    """What is needed of a clock."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


async def end_group(process: subprocess.Popen[bytes], clock: Timer, *, wait_s: float, poll_s: float = 0.05) -> None:
    """Ask a process that leads its own group to end, at most `wait_s` seconds, then kill the whole group."""
    process.terminate()
    end = clock.now() + wait_s
    while process.poll() is None and clock.now() < end:
        await clock.sleep(poll_s)
    with contextlib.suppress(ProcessLookupError):  # all of its group has ended
        os.killpg(process.pid, signal.SIGKILL)
    while process.poll() is None:  # a killed process ends as soon as the kernel has time
        await clock.sleep(poll_s)


def free_ports(host: str, count: int) -> tuple[int, ...]:
    """`count` different ports of `host` that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind((host, 0))
        return tuple(held.getsockname()[1] for held in sockets)
    finally:
        for held in sockets:
            held.close()
