# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Report metrics to the metrics service from any process: a reward function, a tool server, a script beside the run.

    client = MetricsClient(args.metrics_service_url, source="my_reward")
    client.log_metric(None, "custom/parse_errors/count", 1)

A call puts the values into a bounded queue and returns; a thread sends them. What is lost (full queue, no service, a
refusal) is counted, told in the log, and known to the service by the next batch that arrives.
"""

from __future__ import annotations

import http.client
import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

CAPACITY = 1024  # batches
TIMEOUT_S = 5.0
CLOSE_S = 5.0
AFTER_FAILURE_S = 1.0  # batches that come in this time after a failed one are lost without a try

Value = float | tuple[float, float]  # a measurement, or (sum, count) of several for a mean
Batch = dict[str, Value]


class MetricsClient:
    """One sender. `url` is the service's address (`args.metrics_service_url`); None loses everything, counted."""

    def __init__(self, url: str | None, *, source: str = "http", capacity: int = CAPACITY) -> None:
        self._url, self.source = url, source
        self._client = uuid.uuid4().hex
        self._lock = threading.Lock()  # of the three numbers
        self._had = self._lost = self._queued = 0  # values
        self._queue: queue.Queue[tuple[str, dict[str, Any], int] | None] = queue.Queue(capacity)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never leaves the cluster
        self._failed_at = float("-inf")
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:  # another process sends by itself
        return _again, (self._url, self.source)

    @property
    def lost(self) -> int:
        """Values that the service has not got and will not get."""
        return self._lost

    def log_metric(self, step: int | None, name: str, value: Value, tags: Mapping[str, Any] | None = None) -> None:
        """Report one value of a step; None is the step that is written next."""
        self.log_metrics_batch(step, {name: value}, tags)

    def log_metrics_batch(
        self, step: int | None, metrics: Mapping[str, Value], tags: Mapping[str, Any] | None = None
    ) -> None:
        with self._lock:
            self._had += len(metrics)
            body = {
                "step": step,
                "metrics": dict(metrics),
                "tags": {"source": self.source, **(tags or {})},
                "client": self._client,
                "sent": self._had,
            }
            self._put("/log_metrics_batch", body, len(metrics))

    def report_step(self, step: int) -> None:
        """Have what came late for a step written now."""
        with self._lock:
            self._put("/report_step", {"step": step}, 0)

    def health_check(self) -> bool:
        """Whether the service answers; waits for at most 5 s."""
        try:
            return self._url is not None and self._open(urllib.request.Request(f"{self._url}/health")) == 200
        except (OSError, http.client.HTTPException):  # the caller is told: it does not answer
            return False

    def get_buffered_metrics_count(self) -> int:
        """Values that wait to be sent."""
        return self._queued

    def clear_buffer(self) -> None:
        """Send nothing of what waits; it counts as lost."""
        while True:
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                return
            if batch is not None:
                self._done(batch[2], "cleared")

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        if self._thread is not None and self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_S)
                self._thread.join(CLOSE_S)
            except queue.Full:  # the thread is stuck; what waits is told below
                pass
        if self._lost or self._queued:
            logger.warning("metrics not delivered source=%s values=%d", self.source, self._lost + self._queued)

    # ------------------------------------------------------------------ sending

    def _put(self, path: str, body: dict[str, Any], values: int) -> None:
        """Queue a batch; the caller holds the lock."""
        if self._url is None:
            self._lose(values, "there is no metrics service")
            return
        try:
            self._queue.put_nowait((path, body, values))
        except queue.Full:
            self._lose(values, "the queue is full")
            return
        self._queued += values
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="metrics-client", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            path, body, values = batch
            self._done(values, self._send(path, body))

    def _send(self, path: str, body: Mapping[str, Any]) -> str | None:
        """None, or why it did not arrive."""
        if time.monotonic() - self._failed_at < AFTER_FAILURE_S:
            return "the service did not answer a moment ago"
        try:
            raw = json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            return f"not JSON: {error}"
        headers = {"Content-Type": "application/json"}
        try:
            self._open(urllib.request.Request(f"{self._url}{path}", raw, headers, method="POST"))
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code} {error.read(500).decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            self._failed_at = time.monotonic()
            return str(error)
        return None

    def _open(self, request: urllib.request.Request) -> int:
        with self._opener.open(request, timeout=TIMEOUT_S) as reply:
            return reply.status

    def _done(self, values: int, failure: str | None) -> None:
        with self._lock:
            self._queued -= values
            if failure is not None:
                self._lose(values, failure)

    def _lose(self, values: int, why: str) -> None:
        before, self._lost = self._lost, self._lost + values
        if before.bit_length() < self._lost.bit_length():  # at 1, 2, 4, 8, ...
            logger.warning("metrics lost source=%s values=%d last=%s", self.source, self._lost, why)


def _again(url: str | None, source: str) -> MetricsClient:
    return MetricsClient(url, source=source)
