# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A small process that outlives its driver long enough to end what Ray leaves behind, and its folder.

    python -m relax.distributed.ray.reaper FOLDER      stdin: a pipe from the driver

Ray ends its daemons, but an agent that was still starting waits a minute for a server that is gone. A driver that has
shut Ray down in order writes a byte: then nothing needs time to end by itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 3.0  # for Ray to end what it can


class Reaper:
    """The driver's end of the pipe."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals of the terminal are for the driver
        )

    def dismiss(self) -> None:
        """The driver has shut Ray down in order: end what is left, at most ten seconds."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(b"x", timeout=10.0)


def main(folder: str) -> None:
    driver = os.getppid()  # has its own log below the folder
    if not sys.stdin.buffer.read(1):
        time.sleep(GRACE_S)
    for pid in holders(folder):
        if pid == driver:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def holders(folder: str) -> Iterator[int]:
    """Processes that have a file below `folder` open, such as their log."""
    for path in Path("/proc").glob("[0-9]*/fd"):
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if pid != os.getpid() and any(os.readlink(link).startswith(folder + "/") for link in path.iterdir()):
                yield pid


if __name__ == "__main__":
    main(sys.argv[1])
