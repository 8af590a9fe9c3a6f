# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The run's end of a tracker's process: a pipe of JSON lines, and the right to end it.

A tracker's library waits for its server when it starts, while it logs and when the interpreter exits, in ways that no
time limit of ours reaches. In a process of its own it can wait as long as it likes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import relax
from relax.utils.errors import InfrastructureError
from relax.utils.jsonl import dumps

CLOSE_TIMEOUT_S = 30.0  # for the last rows; ClearML takes 12 s without any network
LAST_WORDS_BYTES = 4096


class TrackerProcess:
    """A `Sink` whose rows go to `python -m relax.utils.trackers.worker`. `start`, `write` and `close` may block.

    Args:
        kind: wandb or clearml.
        settings: arguments of the tracker's class in `worker`; they reach it by the pipe, not by its command line.
        log: everything that the library prints. What the user must know goes to this process's stderr.
        environment: variables beside those of this process.
        limit_s: for its end, once it has all rows.
    """

    def __init__(
        self,
        kind: str,
        settings: Mapping[str, Any],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        limit_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.kind, self._log, self._settings = kind, log, settings
        log.parent.mkdir(parents=True, exist_ok=True)
        paths = [str(Path(relax.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
        search = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        told = os.dup(2)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "relax.utils.trackers.worker", kind, str(os.getpid()), str(limit_s), str(told)],
                stdin=subprocess.PIPE,
                pass_fds=(told,),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **search, **(environment or {})},
                start_new_session=True,  # signals of the terminal are for the run; `abandon` reaches the whole group
            )
        os.close(told)

    def start(self) -> None:
        self._send(dumps(self._settings))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._send(dumps({"step": step, "values": dict(values)}))

    def _send(self, line: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(line.encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise InfrastructureError(self._ended()) from None

    def close(self) -> None:
        """Let it send what it has. Waits as long as that takes: whoever waits for this may call `abandon`."""
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # its exit code says it
            pipe.close()
        if self._process.wait() != 0:
            raise InfrastructureError(self._ended())

    def abandon(self) -> None:
        """End it now, with what it has started. Callable from any thread."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ended(self) -> str:
        code = self._process.wait()
        with open(self._log, "rb") as file:
            file.seek(max(0, self._log.stat().st_size - LAST_WORDS_BYTES))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"{self.kind} ended with exit code {code}: {lines[-1] if lines else 'it said nothing'} ({self._log})"
