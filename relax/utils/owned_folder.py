# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Folders outside the run folder, such as weights in shared memory: they go with the process that made them.

A process that is killed cannot remove its folder, so the next run does: the kernel has released the folder's lock.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relax.utils.errors import ConfigError
from relax.utils.lock import LOCK_NAME, RunLock

YOUNG_S = 10.0  # a folder younger than this may not have been locked yet


@contextmanager
def owned_folder(path: Path) -> Iterator[Path]:
    """Make and lock `path`; it is removed at the end, with whatever was put into it."""
    lock = RunLock(path)
    try:
        yield path
    finally:
        lock.release()
        shutil.rmtree(path, ignore_errors=True)


def remove_abandoned(parent: Path, pattern: str) -> list[Path]:
    """Remove folders that `owned_folder` has made for a process that no longer lives; returns them."""
    removed = []
    for folder in parent.glob(pattern):
        try:
            lock_path = folder / LOCK_NAME
            if not lock_path.exists() or time.time() - lock_path.stat().st_mtime < YOUNG_S:
                continue
            lock = RunLock(folder)
        except (ConfigError, OSError):  # its process lives, another run is removing it, or it is another user's
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
        removed.append(folder)
    return removed
