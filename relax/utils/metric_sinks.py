# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where the numbers of a step go: JSON lines, TensorBoard, and the thread that keeps a slow one away from training.

Weights & Biases and ClearML are in `relax.utils.trackers`: they run in a process of their own.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relax.utils.errors import ConfigError
from relax.utils.jsonl import JsonlWriter
from relax.utils.metrics import Sink

logger = logging.getLogger(__name__)


class JsonlSink:
    """`{"step": r, "rollout/reward/mean": ...}`, one line a step, flushed."""

    def __init__(self, path: Path) -> None:
        self._writer = JsonlWriter(path)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._writer.write({"step": step, **values})
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TensorBoardSink:
    """Event files in `folder`, written by tensorboard itself: no torch in the process that logs.

    A run that goes on at step `resumed_at` lets readers forget what an earlier file says about that step and later.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        try:
            from tensorboard.compat.proto import event_pb2
            from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError(
                f"--use-tensorboard needs the package tensorboard ({error}); install it or pass --no-use-tensorboard"
            ) from error
        event: Any = event_pb2  # its classes are made at run time
        self._event, self._summary = event.Event, Summary
        self._writer = EventFileWriter(str(folder))
        if resumed_at is not None:
            start = event.SessionLog(status=event.SessionLog.START)
            self._writer.add_event(event.Event(step=resumed_at, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        # an event's wall time is an observation: nothing is ordered by it
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class BackgroundSink:
    """Runs a sink on its own thread. A full queue loses rows, counted; a failing sink is given up, logged once.

    `start` is called on the thread before the first row; `abandon` ends whatever the sink is waiting for, when closing
    has taken `close_timeout_s` seconds.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        name: str,
        capacity: int = 1024,
        close_timeout_s: float = 10.0,
        start: Callable[[], None] | None = None,
        abandon: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._refused = 0  # rows, counted by the caller's thread like the next number
        self._accepted = 0
        self._written = 0  # by the sink's own thread
        self._closed = False
        self.error: Exception | None = None
        self._sink = sink
        self._close_timeout_s = close_timeout_s
        self._start, self._abandon = start, abandon
        self._queue: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._run, name=f"metrics-{name}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Rows that were lost so far."""
        ended = self._closed or self.error is not None
        return self._refused + (self._accepted - self._written if ended else 0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self.error is not None:
            self._refused += 1
            return
        try:
            self._queue.put_nowait((step, dict(values)))
            self._accepted += 1
        except queue.Full:
            self._refused += 1
            if self._refused.bit_count() == 1:  # 1, 2, 4, 8, ... rows: told in time, and not once a step
                logger.warning("metrics rows dropped sink=%s step=%d dropped=%d", self.name, step, self.dropped)

    def close(self) -> None:
        """Write what is queued, for at most `close_timeout_s` seconds."""
        if self._thread.is_alive():
            self._stop()
        self._closed = True
        if self.dropped:
            logger.warning("metrics rows that were lost sink=%s rows=%d", self.name, self.dropped)

    def _stop(self) -> None:
        deadline = time.monotonic() + self._close_timeout_s  # observed: nothing is ordered by it
        with contextlib.suppress(queue.Full):  # then the thread is stuck, which is told below
            self._queue.put(None, timeout=self._close_timeout_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            return
        logger.warning(
            "metrics sink still busy at exit, what it has not sent is lost sink=%s rows=%d",
            self.name,
            self._queue.qsize(),
        )
        if self._abandon is not None:
            self._abandon()

    def _run(self) -> None:
        try:
            if self._start is not None:
                self._start()
            while (row := self._queue.get()) is not None:
                self._sink.write(*row)
                self._written += 1
            self._sink.close()
        except Exception as error:  # whatever a tracker raises must not reach training: the log and `error` are told
            self.error = error
            logger.error("metrics sink failed, its rows are dropped from now on sink=%s error=%s", self.name, error)
