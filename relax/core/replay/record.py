# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a run folder says about a run: its configuration, the steps of its surviving line, and where one can start.

A resumed run decides again what came after its checkpoint; the line that survives is what the newest incarnation
continued. Groups may be in the trace twice then: the last one counts.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from relax.config.run import RunConfig
from relax.core.checkpoint import STATE, RunState, iteration_folder
from relax.core.run_folder import RunFolder, read_config
from relax.distributed.bus.base import Block, decode_block
from relax.distributed.trace import Damage, TraceEntry, find_damage, read_block, read_notes
from relax.schedule import events as ev
from relax.schedule.journal import read_journal
from relax.utils.errors import ConfigError, DataError
from relax.utils.jsonl import read_jsonl
from relax.utils.metric_collector import is_evaluation


@dataclass(frozen=True)
class Start:
    """Weights that the folder (or the model's) still has. `version` rollouts are contained in them."""

    version: int
    checkpoint: Path | None = None  # None: the model that the run started with

    @property
    def digest(self) -> str:
        """Chained digest of the groups that were trained before."""
        return self._state.digest if self._state else ""

    @property
    def reference_version(self) -> int:
        """Of the reference that the checkpoint goes with; 0: the initial one."""
        return self._state.reference_version if self._state else 0

    @functools.cached_property
    def _state(self) -> RunState | None:
        if self.checkpoint is None:
            return None
        return RunState.from_json(json.loads((self.checkpoint / STATE).read_text()))

    def __str__(self) -> str:
        return f"version {self.version} ({self.checkpoint.name if self.checkpoint else 'the model at the start'})"


@dataclass(frozen=True)
class StepRecord:
    """One trained rollout."""

    rollout_id: int
    parts: tuple[tuple[int, ...], ...]  # groups as they were bound, each part in uid order
    digest: str  # chained over all groups trained so far
    trained: ev.Trained | None = None  # None: an older run, which did not write it
    critic: ev.CriticTrained | None = None  # of the critic, when the run has one

    @property
    def groups(self) -> tuple[int, ...]:
        """In uid order."""
        return tuple(sorted(group for part in self.parts for group in part))


@dataclass
class RunRecord:
    """See the module. Read once; blocks are read when they are asked for."""

    folder: RunFolder
    config: RunConfig
    manifest: dict[str, Any]
    steps: dict[int, StepRecord] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)  # ascending
    weights: dict[int, dict[str, str]] = field(default_factory=dict)  # version -> {tensor: checksum}
    published: set[int] = field(default_factory=set)  # versions
    entries: dict[int, TraceEntry] = field(default_factory=dict)  # of every finished group
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)  # group -> (epoch, row) of its prompt
    ended: str | None = None  # how the newest incarnation ended; None: it did not, or still runs

    @classmethod
    def read(cls, root: Path) -> RunRecord:
        """Raises ConfigError for a folder that is none of a run, DataError for one that cannot be read."""
        root = root.expanduser()
        if not root.is_dir():
            raise ConfigError(f"--run {root}: there is no such folder")
        config = read_config(root)
        record = cls(RunFolder(root), config, json.loads((root / "manifest.json").read_text()))
        if not (record.folder.journal / "driver.jsonl").is_file():
            raise ConfigError(f"--run {root}: journal/driver.jsonl is missing; without it nothing tells the steps")
        _Line(record).read()
        for path in sorted(record.folder.journal.glob("*.jsonl")):
            for event in _events(path):
                if isinstance(event, ev.Completed):
                    record.entries[event.group] = TraceEntry(
                        event.file, event.offset, event.length, event.digest, event.columns
                    )
        return record

    @property
    def critic_ranks(self) -> int:
        return self.config.resource["critic"].gpus if "critic" in self.config.resource else 0

    # ------------------------------------------------------------------ steps

    def step(self, number: int) -> StepRecord:
        if number not in self.steps:
            raise ConfigError(f"--step {number}: {self.known_steps()}")
        return self.steps[number]

    def known_steps(self) -> str:
        """Which steps there are, for messages."""
        if not self.steps:
            return f"no rollout of {self.folder.root} has been trained{self._state()}"
        first, last = min(self.steps), max(self.steps)
        return f"{self.folder.root} has trained rollouts {first} to {last}{self._state()}"

    def _state(self) -> str:
        return "; the run has not ended" if self.ended is None else f"; the run {self.ended.replace('_', ' ')}"

    def start_for(self, version: int) -> Start:
        """The newest start at or before `version`; raises ConfigError when none is left."""
        usable = [start for start in self.starts if start.version <= version and self._has_reference(start)]
        if not usable:
            have = ", ".join(map(str, self.starts)) or "none"
            raise ConfigError(
                f"--run {self.folder.root}: no weights at or before version {version} can be used to start from "
                f"(there are: {have}). Keep a checkpoint (--save-interval), or the folder that the run went on from"
            )
        return max(usable, key=lambda start: start.version)

    def _has_reference(self, start: Start) -> bool:
        """The reference that the run had at the start is in the checkpoint, or is the start's own weights."""
        interval = self.config.algorithm.ref_update_interval
        if not (self.config.uses_kl and interval and start.checkpoint):
            return True
        refreshed = start.version // interval * interval
        stored = start.reference_version if "reference" not in self.config.resource else 0
        return refreshed in (stored, start.version)

    # ------------------------------------------------------------------ groups

    def entry(self, group: int) -> TraceEntry:
        if group not in self.entries:
            raise DataError(
                f"group {group} was trained, but no `completed` line says where it is", where=str(self.folder.journal)
            )
        return self.entries[group]

    def damage(self, group: int) -> Damage | None:
        return find_damage(self.folder.trace, self.entry(group))

    def block(self, group: int) -> Block:
        return read_block(self.folder.trace, self.entry(group))

    def lengths(self, group: int) -> tuple[list[int], list[int]] | None:
        """(tokens, response tokens) of each sample of a group, None when a damaged block does not tell."""
        entry = self.entry(group)
        try:
            columns = decode_block(
                (self.folder.trace / entry.file).read_bytes()[entry.offset :][: entry.length]
            ).columns
            return np.diff(columns["token_offsets"]).tolist(), columns["response_len"].tolist()
        except (OSError, ValueError, KeyError, struct.error):  # the damage itself is told by the caller
            return None

    def notes(self, groups: Iterable[int]) -> dict[int, dict[str, Any]]:
        """{group: what the rollout role noted beside its block: `rows` (texts), `seconds`, `media`}."""
        entries = {self.entry(group).digest: group for group in groups}
        found = read_notes(self.folder.trace, [self.entry(group) for group in groups])
        return {entries[digest]: notes for digest, notes in found.items()}

    def metrics(self, step: int) -> dict[str, float]:
        """What the curves show at a step, without evaluations; {} when there is no line."""
        path = self.folder.metrics / "metrics.jsonl"
        found: dict[str, float] = {}
        for row in read_jsonl(path) if path.exists() else ():
            if row["step"] == step and not is_evaluation(row):  # a later line says some metrics anew
                found |= {name: float(value) for name, value in row.items() if name != "step"}
        return found


class _Line:
    """Follows the driver's journal and keeps what survives."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._before: dict[int, StepRecord] = {}  # of earlier incarnations in this folder
        self._starts_before: list[Start] = []
        self._bound: dict[int, tuple[tuple[int, ...], ...]] = {}

    def read(self) -> None:
        for event in _events(self._record.folder.journal / "driver.jsonl"):
            self._take(event)
        self._record.starts.sort(key=lambda start: start.version)

    def _take(self, event: ev.Event) -> None:
        record = self._record
        if isinstance(event, ev.RunStarted):
            self._before, self._starts_before = record.steps, record.starts
            record.steps, record.starts, record.ended, self._bound = {}, [Start(0)], None, {}
        elif isinstance(event, ev.Resumed):
            record.steps = {number: step for number, step in self._before.items() if number <= event.rollout_id}
            record.starts = [start for start in self._starts_before if start.version <= event.rollout_id + 1]
            self._add_checkpoint(event.rollout_id, Path(record.config.checkpoint.load or record.folder.root))
        elif isinstance(event, (ev.Admitted, ev.Restored)):
            record.rows[event.group] = (event.epoch, event.row)
        elif isinstance(event, ev.Bound):
            self._bound[event.rollout_id] = (*self._bound.get(event.rollout_id, ()), tuple(sorted(event.groups)))
        elif isinstance(event, ev.Stepped):
            parts = self._bound.get(event.rollout_id, ())
            record.steps[event.rollout_id] = StepRecord(event.rollout_id, parts, event.digest)
        elif isinstance(event, ev.CriticTrained):
            if event.rollout_id in record.steps:
                record.steps[event.rollout_id] = replace(record.steps[event.rollout_id], critic=event)
        elif isinstance(event, ev.Trained) and event.rollout_id in record.steps:
            record.steps[event.rollout_id] = replace(record.steps[event.rollout_id], trained=event)
        elif isinstance(event, ev.Published):
            record.published.add(event.version)
        elif isinstance(event, ev.Weights):
            record.weights[event.version] = dict(event.tensors)
        elif isinstance(event, ev.Checkpointed):
            self._add_checkpoint(event.rollout_id, record.folder.root)
        elif isinstance(event, ev.Ended):
            record.ended = event.reason

    def _add_checkpoint(self, rollout_id: int, root: Path) -> None:
        """A checkpoint that is still there; the user may have removed it."""
        folder = iteration_folder(root, rollout_id)
        start = Start(rollout_id + 1, folder)
        if (folder / STATE).is_file() and start not in self._record.starts:
            self._record.starts.append(start)


def _events(path: Path) -> Iterator[ev.Event]:
    try:
        for _, event in read_journal(path):
            yield event
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"the journal cannot be read: {type(error).__name__}: {error}", where=str(path)) from error
