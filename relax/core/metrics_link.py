# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Between the collector in the driver and the metrics door: rows go out, reports come in.

The run never waits for this: a door that is slow or gone costs the door's rows, not time, and the log is told.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from relax.schedule.clock import Clock
from relax.utils.metric_collector import Collector, Report

logger = logging.getLogger(__name__)

KEPT_ROWS = 1024  # for a door that is started again
ROWS_A_CALL = 128
LONG_POLL_S = 10.0
DEADLINE_S = 10.0  # of an answer, beyond what the call waits
LAST_CALL_S = 3.0
BETWEEN_FETCHES_S = 0.25  # so that a flood of reports costs the driver a bounded share of its time
BETWEEN_FAILURES_S = 5.0


class MetricsDoor(Protocol):
    """The board of the door, in its process: see `relax.core.metrics_board.Board`."""

    async def show_metrics(
        self, board: str, first: int, rows: Sequence[tuple[int, Mapping[str, float]]]
    ) -> tuple[str, int]: ...

    async def take_reports(
        self, board: str, after: int, wait_s: float
    ) -> tuple[str, list[tuple[int, dict[str, Any]]]]: ...


class MetricsLink:
    """A sink of the collector, and what feeds it with the door's reports."""

    def __init__(self, collector: Collector, door: MetricsDoor, clock: Clock) -> None:
        self._collector, self._door, self._clock = collector, door, clock
        self._rows: deque[tuple[int, dict[str, float]]] = deque(maxlen=KEPT_ROWS)
        self._written = 0
        self._wrote = asyncio.Event()
        self._shown_on, self._next = "", 0  # the door that rows went to, and the one that it wants next
        self._taken_from, self._taken = "", 0  # the door that reports came from, and the number of the last
        collector.attach(self)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._rows.append((step, dict(values)))
        self._written += 1
        self._wrote.set()

    def close(self) -> None:
        """Nothing is open here."""

    async def run(self) -> None:
        """Until it is cancelled."""
        await asyncio.gather(self._forever(self._show), self._forever(self._take_some))

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            try:
                await step()
                failures = 0
            except Exception as error:  # the log is told; the run goes on without the door, and tries again
                failures += 1
                if failures.bit_count() == 1:  # 1, 2, 4, 8, ...
                    logger.warning("the metrics door does not answer tries=%d error=%r", failures, error)
                await self._clock.sleep(BETWEEN_FAILURES_S)

    async def _show(self) -> None:
        """Send what the door does not have, once there is something."""
        while self._next >= self._written and self._shown_on:
            self._wrote.clear()
            await self._wrote.wait()
        oldest = self._written - len(self._rows)
        first = max(self._next, oldest)
        rows = list(itertools.islice(self._rows, first - oldest, first - oldest + ROWS_A_CALL))
        async with asyncio.timeout(DEADLINE_S):
            self._shown_on, self._next = await self._door.show_metrics(self._shown_on, first, rows)

    async def _take_some(self) -> None:
        await self.take(LONG_POLL_S)
        await self._clock.sleep(BETWEEN_FETCHES_S)

    async def take(self, wait_s: float) -> int:
        """Fetch reports into the collector; returns how many messages came."""
        async with asyncio.timeout(wait_s + DEADLINE_S):
            board, messages = await self._door.take_reports(self._taken_from, self._taken, wait_s)
        if board != self._taken_from:
            self._taken_from, self._taken = board, 0
        if self._shown_on not in ("", board):  # a door that was started again has no rows
            self._shown_on = ""
            self._wrote.set()
        new = [(number, message) for number, message in messages if number > self._taken]
        for number, message in new:
            self._taken = number
            self._apply(message)
        return len(new)

    def _apply(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"report": raw}:
                self._collector.report(Report.from_json(raw))
            case {"write_late": step}:
                self._collector.write_late(step)
            case {"clear": step}:
                self._collector.clear(step)
            case {"error": raw}:
                logger.error("reported: %s\n%s", raw["error_message"], raw["error_traceback"])

    async def finish(self) -> None:
        """Fetch what has come, for a few seconds at most; `run` has ended."""
        try:
            async with asyncio.timeout(LAST_CALL_S):
                while await self.take(0.0):
                    pass
        except Exception as error:  # the log is told; the run ends without the last reports
            logger.warning("the metrics door was not asked for its last reports error=%r", error)
