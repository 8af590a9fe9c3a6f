# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A small process that outlives a killed driver long enough to end what Ray leaves behind, and its folder.

    python -m relax.distributed.ray.reaper FOLDER      stdin: a pipe from the driver

Ray's own reaper ends its daemons, but their agents wait a minute for a server that is gone. A driver that shuts down
in order writes a byte first; then nothing is done here.
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
        """The driver has shut down in order."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(b"x", timeout=10.0)


def main(folder: str) -> None:
    if sys.stdin.buffer.read(1):
        return
    time.sleep(GRACE_S)
    for pid in holders(folder):
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
