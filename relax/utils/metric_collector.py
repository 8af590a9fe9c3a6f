# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where a step's numbers become a row. Every metric passes here on its way to metrics.jsonl and the trackers.

The run's own row of a step is written when the step ends (`write`). What others report (`report`) is added to it; what
comes after it makes a later line of the same step, which says those metrics anew. Nothing here waits, and everything
that is held is bounded; what finds no place is counted and told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax.utils.errors import InternalError, MetricConflict
from relax.utils.metrics import Row, Sink, find_spec

logger = logging.getLogger(__name__)

KEPT_STEPS = 64  # steps that a late report can still reach, and steps ahead that are held
MAX_NAMES = 1000  # reported metrics of one step
MAX_CLIENTS = 4096
TRAIN, EVAL = "train", "eval"


@dataclass(frozen=True)
class Report:
    """What a role measured: {name: (sum, count)}."""

    source: str  # owner of its gauges: a role, or whoever reports
    values: Mapping[str, tuple[float, float]]
    step: int | None = None  # None: the step that is written next
    client: str = ""  # the one process of the source that sends it
    sent: int | None = None  # values that this client has had so far, these and lost ones included

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Report:
        values = {name: (float(total), float(count)) for name, (total, count) in raw["values"].items()}
        return cls(**{**raw, "values": values})


def is_evaluation(names: Iterable[str]) -> bool:
    """Whether a row is one of an evaluation, whose step is a weight version."""
    return any(name.startswith("eval/") or name == "perf/eval_s" for name in names)


@dataclass
class _Stream:
    """Rows on one axis: rollouts, or evaluated versions."""

    written: dict[int, Row] = field(default_factory=dict)  # the last KEPT_STEPS, oldest first
    waiting: dict[int, Row] = field(default_factory=dict)  # reported, their step is not written
    late: dict[int, set[str]] = field(default_factory=dict)  # names that came after their step was written
    newest: int = -1


class Collector:
    """Merges rows and hands them to the sinks. Belongs to one thread."""

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = list(sinks)
        self._streams = {TRAIN: _Stream(), EVAL: _Stream()}
        self._next = Row()  # reported without a step
        self._clients: dict[str, tuple[int, int]] = {}  # (values received, values that it says it had)
        self._missing_before = 0  # of clients that are no longer followed
        self.refused = 0  # reported values that are in no row

    def attach(self, sink: Sink) -> None:
        """Give rows to one more sink from now on."""
        self._sinks.append(sink)

    @property
    def dropped(self) -> int:
        """Rows that sinks have lost so far."""
        return sum(getattr(sink, "dropped", 0) for sink in self._sinks)

    @property
    def has_reports(self) -> bool:
        return bool(self._clients)

    @property
    def missing(self) -> int:
        """Values that clients had and that did not arrive here so far."""
        return self._missing_before + sum(max(0, had - received) for received, had in self._clients.values())

    # ------------------------------------------------------------------ in

    def report(self, report: Report) -> None:
        """Add another's values to their step; what cannot be added is counted in `refused` and told in the log."""
        client = report.client or report.source
        received, had = self._clients.pop(client, (0, 0))
        self._clients[client] = received + len(report.values), max(had, report.sent or 0)
        if len(self._clients) > MAX_CLIENTS:
            received, had = self._clients.pop(next(iter(self._clients)))
            self._missing_before += max(0, had - received)
        for name, (total, count) in report.values.items():
            self._take(name, total, count, report.source, report.step)

    def _take(self, name: str, total: float, count: float, source: str, step: int | None) -> None:
        try:
            stream = self._streams[EVAL if is_evaluation([name]) else TRAIN]
            row = self._place(name, step, stream)
            if name not in row and len(row) >= MAX_NAMES:
                raise MetricConflict(f"{name} finds {len(row)} metrics in the step, and that is the limit")
            row.add(name, total, count, owner=source)
        except (MetricConflict, InternalError) as error:  # the latter is an undeclared name
            self._refuse(f"{error} (step {step}, from {source!r})")
        else:
            if step in stream.written:
                stream.late.setdefault(step, set()).add(name)

    def _place(self, name: str, step: int | None, stream: _Stream) -> Row:
        """The row that a reported value belongs to."""
        find_spec(name)  # raises before a row is made for an undeclared name
        if step is None:
            if stream is not self._streams[TRAIN]:
                raise MetricConflict(f"{name} needs the step, which is the version that was evaluated")
            return self._next
        if step in stream.written:
            return stream.written[step]
        if step <= stream.newest - KEPT_STEPS or step < 0:
            raise MetricConflict(f"{name} comes more than {KEPT_STEPS} steps late: the newest is {stream.newest}")
        if step not in stream.waiting and len(stream.waiting) >= KEPT_STEPS:
            raise MetricConflict(f"{name} comes early, and {KEPT_STEPS} unwritten steps have reports already")
        return stream.waiting.setdefault(step, Row())

    def _refuse(self, why: str) -> None:
        self.refused += 1
        if self.refused.bit_count() == 1:  # 1, 2, 4, 8, ...: told in time, and not once a step
            logger.warning("reported metrics refused in_all=%d last=%s", self.refused, why)

    def clear(self, step: int | None) -> None:
        """Forget what was reported for a step (None: any step) that is not written yet."""
        for stream in self._streams.values():
            for known in [s for s in stream.waiting if step in (None, s)]:
                del stream.waiting[known]
        if step is None:
            self._next = Row()

    # ------------------------------------------------------------------ out

    def write(self, step: int, row: Row, kind: str = TRAIN) -> dict[str, float]:
        """The run's own row of a step is whole: add what was reported, and hand it on. Returns its values."""
        self.write_late()
        stream = self._streams[kind]
        for earlier in sorted(s for s in stream.waiting if s < step):
            self._settle(stream, earlier, Row())
        if kind == TRAIN:
            self._add(row, self._next, step)
            self._next = Row()
        return self._settle(stream, step, row)

    def write_late(self, step: int | None = None) -> None:
        """Later lines of steps (None: of all) that have got reports since they were written."""
        for stream in self._streams.values():
            for known in sorted(s for s in stream.late if step in (None, s)):
                names = stream.late.pop(known)
                values = stream.written[known].values()
                self._hand_on(known, {name: value for name, value in values.items() if name in names})

    def _settle(self, stream: _Stream, step: int, row: Row) -> dict[str, float]:
        self._add(row, stream.waiting.pop(step, Row()), step)
        values = row.values()
        stream.written.pop(step, None)
        stream.written[step] = row
        stream.newest = max(stream.newest, step)
        while len(stream.written) > KEPT_STEPS:
            oldest = next(iter(stream.written))
            del stream.written[oldest]
        self._hand_on(step, values)
        return values

    def _add(self, row: Row, reported: Row, step: int) -> None:
        for name, total, count, owner in reported.entries():
            try:
                row.add(name, total, count, owner=owner)
            except MetricConflict as error:
                self._refuse(f"{error} (step {step})")

    def _hand_on(self, step: int, values: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.write(step, values)

    def close(self) -> None:
        """Write what still waits, each under its step, and close the sinks."""
        last = max(self._streams[TRAIN].newest, 0)
        for name, total, count, owner in self._next.entries():  # no step came after it: it belongs to the last one
            self._take(name, total, count, owner, last)
        self.write_late()
        for stream in self._streams.values():
            for step in sorted(stream.waiting):
                self._settle(stream, step, Row())
        if self.missing or self.refused:
            logger.warning("reported metrics that are in no row missing=%d refused=%d", self.missing, self.refused)
        for sink in self._sinks:
            sink.close()
