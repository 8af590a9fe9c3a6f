# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the metrics door holds: the newest rows for those who ask, and reports on their way to the collector.

Both are bounded. The driver sends rows and fetches reports; each side numbers what it sends, so that an answer that
was lost, or a door that was started again, repeats and loses nothing that the other side still has.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from relax.utils.errors import MetricConflict
from relax.utils.metric_collector import EVAL, TRAIN, is_evaluation
from relax.utils.metrics import find_spec

KEPT_ROWS = 1024  # of each kind
WAITING = 4096  # messages that the driver has not fetched
ONE_FETCH = 256
KEPT_GAUGES = 4096
KEPT_ERRORS = 20


class Full(Exception):
    """As many messages wait as may."""


class Board:
    """State of one door. Belongs to one event loop."""

    def __init__(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self.missing_rows = 0
        self.refused = 0  # messages that found the queue full
        self.errors: deque[dict[str, Any]] = deque(maxlen=KEPT_ERRORS)
        self._rows: dict[str, dict[int, dict[str, float]]] = {TRAIN: {}, EVAL: {}}
        self._next_row = 0
        self._gauges: dict[tuple[int, str], tuple[str, float]] = {}  # reported: (source, value)
        self._messages: deque[tuple[int, dict[str, Any]]] = deque()
        self._numbers = itertools.count(1)
        self._came = asyncio.Event()

    # ------------------------------------------------------------------ rows

    def show(self, board: str, first: int, rows: Sequence[tuple[int, Mapping[str, float]]]) -> tuple[str, int]:
        """Rows `first`, `first + 1`, ... of the run -> (this board's id, the row that it wants next).

        A driver that takes this board for another one (`board`) has nothing taken, and sends from that row on.
        """
        if board == self.incarnation:
            self.missing_rows += max(0, first - self._next_row)
            for number, (step, values) in enumerate(rows, start=first):
                if number >= self._next_row:
                    self._keep(step, values)
            self._next_row = max(self._next_row, first + len(rows))
        return self.incarnation, self._next_row

    def _keep(self, step: int, values: Mapping[str, float]) -> None:
        kept = self._rows[EVAL if is_evaluation(values) else TRAIN]
        kept[step] = kept.get(step, {}) | dict(values)  # a later line of a step says some metrics anew
        while len(kept) > KEPT_ROWS:
            del kept[min(kept)]

    def latest(self, kind: str = TRAIN) -> tuple[int, dict[str, float]] | None:
        kept = self._rows[kind]
        return (max(kept), kept[max(kept)]) if kept else None

    def series(self, name: str, first: int, last: int | None) -> list[tuple[int, float]]:
        """(step, value) of a metric over the kept steps `first` ... `last`."""
        rows = self._rows[EVAL if is_evaluation([name]) else TRAIN]
        return [
            (step, rows[step][name])
            for step in sorted(rows)
            if step >= first and (last is None or step <= last) and name in rows[step]
        ]

    def names(self) -> list[str]:
        """Of all metrics in the kept rows."""
        return sorted({name for kept in self._rows.values() for row in kept.values() for name in row})

    def oldest(self) -> int | None:
        """The first step that is kept."""
        return min(self._rows[TRAIN], default=None)

    # ------------------------------------------------------------------ reports

    @property
    def waiting(self) -> int:
        return len(self._messages)

    def report(self, report: dict[str, Any]) -> None:
        """Take the fields of a `Report` for the collector; raises for a conflict, or when there is no room."""
        source, step = report["source"], report["step"]
        gauges: dict[tuple[int, str], float] = {}
        for name, (total, _) in report["values"].items():
            if find_spec(name).kind == "gauge" and step is not None:
                gauges[step, name] = total
        for (known, name), value in gauges.items():
            self._check_gauge(name, known, source, value)
        self.put({"report": report})
        for key, value in gauges.items():
            if self._gauges.setdefault(key, (source, value))[0] == source:
                self._gauges[key] = (source, value)
        while len(self._gauges) > KEPT_GAUGES:
            del self._gauges[next(iter(self._gauges))]

    def clear(self, step: int | None) -> None:
        """Have the driver forget what was reported for a step (None: for any) that is not written yet."""
        self.put({"clear": step})
        for known in [key for key in self._gauges if step in (None, key[0])]:
            del self._gauges[known]

    def _check_gauge(self, name: str, step: int, source: str, value: float) -> None:
        owner, known = self._gauges.get((step, name), (None, None))
        if owner is None:
            known = self._rows[EVAL if is_evaluation([name]) else TRAIN].get(step, {}).get(name)
            owner = "the run"
        if known is not None and owner != source and known != value:
            raise MetricConflict(f"{name} of step {step} is {known:g} by {owner}, and {value:g} by {source}")

    def put(self, message: dict[str, Any]) -> None:
        """One message for the driver: `report`, `write_late`, `clear` or `error`."""
        if len(self._messages) >= WAITING:
            self.refused += 1
            raise Full(f"{WAITING} messages wait for the driver, which has not come for them")
        self._messages.append((next(self._numbers), message))
        self._came.set()

    async def take(self, board: str, after: int, wait_s: float) -> tuple[str, list[tuple[int, dict[str, Any]]]]:
        """(this board's id, messages behind number `after` of `board`). Those up to it have arrived: forget them."""
        while board == self.incarnation and self._messages and self._messages[0][0] <= after:
            self._messages.popleft()
        if not self._messages:
            self._came.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), wait_s)
        return self.incarnation, list(itertools.islice(self._messages, ONE_FETCH))
