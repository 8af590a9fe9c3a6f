# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A run folder belongs to one run at a time."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from relax.utils.errors import ConfigError

LOCK_NAME = ".lock"


class RunLock:
    """Holds `folder` for this process until `release` or the process's end, however it ends.

    The kernel owns the lock, so a run that was killed leaves none behind; the file's text only names the holder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._fd: int | None = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 4096, 0).decode(errors="replace")
            os.close(self._fd)
            self._fd = None
            raise ConfigError(
                f"--save {folder}: the folder is in use by {_describe(holder)}; "
                "wait for that run to end, stop it, or give this run another --save"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "host": os.uname().nodename}).encode(), 0)

    def release(self) -> None:
        """Give the folder back. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def check_unlocked(folder: Path) -> None:
    """Raise what `RunLock` would, without taking the lock or making the folder."""
    if (folder / LOCK_NAME).exists():
        RunLock(folder).release()


def _describe(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"  # it holds the lock but has not written its name yet
