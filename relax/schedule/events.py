# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Events of the journal. Decisions change the life cycle; observations only describe it.

Order is the journal's sequence number. Wall time appears in observations alone, so two runs that decide alike have
equal decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from relax.utils.jsonl import plain

SCHEMA = 1
NO_CHECKSUM = "-" * 8  # of a sample that a column has nothing for, such as media of a text prompt


@dataclass(frozen=True)
class Event:
    kind: ClassVar[str] = ""
    decision: ClassVar[bool] = True
    durable: ClassVar[bool] = False  # synced to disk before it takes effect

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class RunStarted(Event):
    kind = "run_started"
    run_id: str
    mode: str
    rollout_batch_size: int
    max_staleness: int
    num_rollouts: int


@dataclass(frozen=True)
class Resumed(Event):
    """The run continues after checkpoint `rollout_id`: later decisions of the old incarnation don't count."""

    kind = "resumed"
    rollout_id: int
    next_group: int
    readmit: tuple[int, ...] = ()  # groups admitted before and not contained in the checkpoint
    # {writer: (first, end)}: lines of this run folder, by sequence, that came after the checkpoint and count no more
    undone: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Restored(Event):
    """A finished group of an earlier incarnation is read back from the trace, where it lies at file and offset."""

    kind = "restored"
    group: int
    epoch: int
    row: int
    version: int  # oldest serving version at its admission
    oldest: int
    newest: int
    file: str
    offset: int
    length: int
    digest: str
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineJoined(Event):
    kind = "engine_joined"
    engine: str
    version: int


@dataclass(frozen=True)
class EngineLeft(Event):
    kind = "engine_left"
    engine: str
    reason: str


@dataclass(frozen=True)
class Admitted(Event):
    """A group may be generated. `version` is the oldest version that a serving engine holds."""

    kind = "admitted"
    group: int
    epoch: int
    row: int
    version: int


@dataclass(frozen=True)
class Accepted(Event):
    """A finished group passed its filters. `oldest` is the smallest weight version of its sampled tokens."""

    kind = "accepted"
    group: int
    oldest: int
    newest: int


@dataclass(frozen=True)
class Dropped(Event):
    kind = "dropped"
    group: int
    reason: str


@dataclass(frozen=True)
class Bound(Event):
    """Which groups make a rollout. May come in pieces; `last` closes the rollout."""

    kind = "bound"
    durable = True
    rollout_id: int
    groups: tuple[int, ...]
    last: bool


@dataclass(frozen=True)
class Taken(Event):
    kind = "taken"
    rollout_id: int
    incarnation: int


@dataclass(frozen=True)
class Stepped(Event):
    """All optimizer steps of a rollout are done. `digest` chains the digests of all trained groups."""

    kind = "stepped"
    rollout_id: int
    digest: str


@dataclass(frozen=True)
class Published(Event):
    kind = "published"
    durable = True
    version: int


@dataclass(frozen=True)
class Installed(Event):
    kind = "installed"
    engine: str
    version: int


@dataclass(frozen=True)
class Checkpointed(Event):
    """A checkpoint that contains rollouts 0 .. rollout_id is whole on disk."""

    kind = "checkpoint"
    durable = True
    rollout_id: int
    path: str


@dataclass(frozen=True)
class Ended(Event):
    kind = "ended"
    durable = True
    reason: str


@dataclass(frozen=True)
class Completed(Event):
    """A group is whole in the trace: where, the digest of its block, and the crc32 of each column and the header."""

    kind = "completed"
    decision = False
    group: int
    file: str
    offset: int
    length: int
    digest: str
    seconds: float
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewarded(Event):
    """Rewards in sample order, NaN where there is none; on disk that is null, which every JSON reader knows."""

    kind = "rewarded"
    decision = False
    group: int
    rewards: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "rewards": [r if math.isfinite(r) else None for r in self.rewards]}


@dataclass(frozen=True)
class Trained(Event):
    """What training a rollout computed, in checksums and sums: `relax replay` computes it again and compares.

    With several ranks, samples, columns and gradients are those of rank 0; sums and counts are everybody's.
    """

    kind = "trained"
    decision = False
    rollout_id: int
    samples: tuple[str, ...]  # "{group}.{place}", in uid order
    columns: Mapping[str, str]  # what each sample was trained on: 8 hex digits of crc32 a sample, in that order
    steps: tuple[Mapping[str, Any], ...]  # one an optimizer step: divisor, sums, counts, grad_norm, lr, gradient

    def to_json(self) -> dict[str, Any]:
        return plain(super().to_json())


@dataclass(frozen=True)
class CriticTrained(Trained):
    """The same of the critic, when there is one."""

    kind = "critic_trained"


@dataclass(frozen=True)
class Weights(Event):
    """The checksum of each tensor of a published version."""

    kind = "weights"
    decision = False
    version: int
    tensors: Mapping[str, str]


@dataclass(frozen=True)
class Timing(Event):
    """How long something took, in seconds, by the writer's monotonic clock."""

    kind = "timing"
    decision = False
    what: str
    rollout_id: int
    start: float
    seconds: float


EVENTS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RunStarted,
        Resumed,
        Restored,
        EngineJoined,
        EngineLeft,
        Admitted,
        Accepted,
        Dropped,
        Bound,
        Taken,
        Stepped,
        Published,
        Installed,
        Checkpointed,
        Ended,
        Completed,
        Rewarded,
        Trained,
        CriticTrained,
        Weights,
        Timing,
    )
}


def from_json(data: dict[str, Any]) -> Event | None:
    """The event of a journal line, or None for a kind that this version doesn't know (the line is kept as it is)."""
    cls = EVENTS.get(data["kind"])
    if cls is None:
        return None
    known = {f.name for f in fields(cls)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
    if cls is Resumed:
        values["undone"] = {writer: tuple(lines) for writer, lines in values.get("undone", {}).items()}
    if cls is Rewarded:
        values["rewards"] = tuple(math.nan if reward is None else reward for reward in values["rewards"])
    return cls(**values)
