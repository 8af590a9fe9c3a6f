# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What travels between the loop of supervised fine-tuning and its roles. Plain data, without torch and Ray.

Partitions of the bus, all with the one table `sft` (see relax.components.sft_rows):

    sft_<step>                      a training step
    sft_<step>_n<shards>_<shard>    the same in several shards
    sft_eval_<step>_n<N>_<i>        micro-batch i of the N that an evaluation takes on each rank

A row is what one rank takes of a partition (its uid is the rank), or, without --sft-async-prepack, all samples of a
training step (uid 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from relax.components.messages import ActorHandle, TrainReport

TABLE = "sft"
PRODUCERS = {TABLE: "sft"}
Uid = tuple[int, int]  # (group, place): group is the position in the stream of training rows
Ranks = tuple[tuple[tuple[Uid, ...], ...], ...]  # [rank][micro-batch]


def train_partition(step: int, shards: int, shard: int) -> str:
    return f"sft_{step}" if shards == 1 else f"sft_{step}_n{shards}_{shard}"


def eval_partition(step: int, number: int, place: int) -> str:
    return f"sft_eval_{step}_n{number}_{place}"


@dataclass(frozen=True)
class Unit:
    """A row that is ready to be trained: its sequences stay in one micro-batch (two for a preference pair)."""

    group: int
    lengths: tuple[int, ...]  # tokens of each sequence
    counted: float  # what it adds to the divisor of the step
    tokens: int  # with a loss weight
    digest: str  # of everything that it is trained on

    @property
    def uids(self) -> tuple[Uid, ...]:
        return tuple((self.group, place) for place in range(len(self.lengths)))


@dataclass(frozen=True)
class Drawn:
    """One shard's share of a step."""

    units: tuple[Unit, ...]
    end: int  # of the shard's own count of rows: the next step starts here
    skipped: Mapping[str, int] = field(default_factory=dict)  # rows left out, by reason
    wait_s: float = 0.0  # for samples that were not rendered ahead
    rendered_s: float = 0.0  # CPU-side work behind the samples, summed over workers
    stop_requested: bool = False

    @property
    def exhausted(self) -> bool:
        """The epochs are over."""
        return not self.units


@dataclass(frozen=True)
class EvalUnits:
    """The rows of one evaluation set that can be used."""

    dataset: str
    units: tuple[Unit, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SftData:
    """What a producer found in the files."""

    rows: int  # of --prompt-data
    train_rows: int  # of them
    digest: str  # of --prompt-data
    order: str  # digest of what decides which row comes when, besides the files


@dataclass(frozen=True)
class Rows:
    """The rows of one partition: (uid of the row, its samples)."""

    partition: str
    shares: tuple[tuple[int, tuple[Uid, ...]], ...]


@dataclass(frozen=True)
class SftTask:
    """One optimizer step. Every rank gets the same task and cuts out its share."""

    step: int
    partitions: tuple[str, ...]
    ranks: Ranks
    packed: bool  # rows are those of single ranks
    divisor: float


@dataclass(frozen=True)
class Measure:
    """One micro-batch a rank, to be evaluated under the current weights."""

    partition: str
    ranks: Ranks


@dataclass(frozen=True)
class Measured:
    """Terms of the loss, summed over all ranks."""

    sums: Mapping[str, float]
    counts: Mapping[str, float]


class ProducerHandle(Protocol):
    async def data(self) -> SftData: ...

    async def set_step(self, step: int) -> None: ...

    async def draw(self, step: int, start: int) -> Drawn:
        """Render this shard's units of a step, from place `start` of its own count of rows on."""
        ...

    async def write(self, step: int, rows: tuple[Rows, ...]) -> None:
        """Put what was drawn for a step on the bus."""
        ...

    async def eval_units(self) -> tuple[EvalUnits, ...]: ...

    async def write_eval(self, rows: Rows) -> None: ...

    async def drop(self, partition: str) -> None: ...


class SftActorHandle(ActorHandle, Protocol):
    async def train_step(self, task: SftTask) -> TrainReport: ...

    async def fetch(self, task: SftTask) -> None:
        """Read a task's samples ahead of its training."""
        ...

    async def measure(self, task: Measure) -> Measured: ...

    async def summary(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> Mapping[str, float]:
        """{metric: value} of an evaluation set from the terms of its micro-batches."""
        ...

    async def objective(self) -> tuple[str, ...]:
        """Terms of the loss that are differentiated."""
        ...


@dataclass
class SftRoles:
    """The handles of a run. Producer 0 coordinates: it gives the evaluation rows as well."""

    producers: tuple[ProducerHandle, ...]
    actor: SftActorHandle
    rollout: Any = None  # RolloutHandle, with predictions
    facts: dict[str, Any] = field(default_factory=dict)
