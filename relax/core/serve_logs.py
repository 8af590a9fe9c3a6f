# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The roles' logs where users of Ray look for them: `tail -f /tmp/ray/session_latest/logs/serve/*.log`.

The logs themselves are in the run folder and stay there. Links `relax-NAME.log` lead to them from the log folder of
the Ray session that the run is in. A private session's folder goes with the run, so there the links have a folder of
their own, `session_relax-UID`, which `session_latest` names until Ray starts another session; it stays readable after
the run. The newest run on a machine has the links.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from relax.distributed.ray.cluster import ray_folder

logger = logging.getLogger(__name__)

PREFIX = "relax-"


class ServeLogs:
    """Links to the logs of one run. What cannot be linked is logged and missing, nothing more."""

    def __init__(self, session: Path | None) -> None:
        """`session` is the folder of a session that outlives the run, None for a private one."""
        self._folder: Path | None = None
        try:
            folder = (self._own_session() if session is None else session) / "logs" / "serve"
            folder.mkdir(parents=True, exist_ok=True)
            for link in folder.glob(f"{PREFIX}*.log"):
                if link.is_symlink():  # of an earlier run
                    link.unlink(missing_ok=True)
            self._folder = folder
        except OSError as error:
            logger.warning("the roles' logs are not linked into Ray's log folder: %s", error)

    def add(self, name: str, log: Path) -> None:
        """Link `log`, which is made where it does not exist yet, so that `tail` finds it."""
        if self._folder is None:
            return
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            _link(self._folder / f"{PREFIX}{name}.log", log.resolve())
        except OSError as error:
            logger.warning("log not linked into Ray's log folder log=%s: %s", log, error)

    @staticmethod
    def _own_session() -> Path:
        parent = ray_folder()
        if not parent.exists():
            parent.mkdir(parents=True)
            parent.chmod(0o777)  # as Ray makes it: other users' clusters have their sessions there too
        session = parent / f"session_{PREFIX}{os.getuid()}"
        session.mkdir(exist_ok=True)
        _link(parent / "session_latest", session)
        return session


def _link(link: Path, target: Path) -> None:
    """Make or replace a symbolic link at once. Something else of that name stays, and is an OSError."""
    if link.exists() and not link.is_symlink():
        raise FileExistsError(f"{link} is there and is no link")
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
