# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What travels between the controller and the roles. Plain data: it pickles and imports neither torch nor Ray.

Tables of partition `train_{rollout_id}` and who writes them:

    rollout     rollout role      tokens, masks, engine log-probs, versions, rewards (see relax.data.columns)
    media       rollout role      features of the prompt's media, only for prompts that have some
    ref         reference         ref_logprobs [R]; by the actor where there is no such role and advantages need it
    actor_fwd   actor_fwd         old_logprobs [R]
    critic      critic            values [R], before each token is sampled
    student     actor             student_ids [R, K], the likeliest before training, where a teacher must know them
    teacher     teacher           see relax.components.teacher
    advantages  advantages        advantages [R], loss_weight [R]; with a critic returns [R]; policy_weight [R] with a
                                  reducer of the user's
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.trace import TraceEntry
from relax.engine.parity.difference import Difference

PRODUCERS = {
    "rollout": "rollout",
    "media": "rollout",
    "ref": "reference",
    "actor_fwd": "actor_fwd",
    "critic": "critic",
    "student": "actor",
    "teacher": "teacher",
    "advantages": "advantages",
}


def partition_of(rollout_id: int) -> str:
    return f"train_{rollout_id}"


def rollout_of(partition: str) -> int:
    """Inverse of `partition_of`."""
    return int(partition.removeprefix("train_"))


@dataclass(frozen=True)
class GroupOrder:
    """One admitted group: which prompt, under which id."""

    group: int
    epoch: int
    row: int
    attempt: int = 0


@dataclass(frozen=True)
class AcceptedGroup:
    group: int
    oldest: int  # smallest weight version of its sampled tokens
    newest: int
    entry: TraceEntry  # where it lies in the trace


@dataclass(frozen=True)
class StoredGroup:
    """A finished group that a checkpoint does not contain: a resume reads it back instead of generating it again."""

    order: GroupOrder
    version: int  # oldest serving version at its admission
    accepted: AcceptedGroup


@dataclass(frozen=True)
class RolloutReport:
    """What ended since the last report. Each group is in exactly one list, once.

    In deterministic mode that is the next groups in the order of their ids, up to the first drop or `need`.
    """

    accepted: tuple[AcceptedGroup, ...] = ()
    dropped: tuple[tuple[int, str], ...] = ()
    sampled_tokens: int = 0  # of all attempts, thrown away ones included
    failures: Mapping[str, int] = field(default_factory=dict)  # failed generate calls by reason
    number: int = 0  # of the role's reports, from 1 on: one that arrives twice is known by it
    stop_requested: bool = False  # by POST /stop_service of the role


@dataclass(frozen=True)
class ReleasedGroup:
    """A group that was put on the bus: what planning its training needs."""

    group: int
    lengths: tuple[int, ...]  # tokens of each sample, prompt included
    digest: str
    has_media: bool


@dataclass(frozen=True)
class ReleaseReport:
    groups: tuple[ReleasedGroup, ...]  # in uid order
    metrics: Mapping[str, tuple[float, float]]  # {metric: (sum, count)}
    maxima: Mapping[str, float]
    last: bool = True  # the rollout has no further part


@dataclass(frozen=True)
class TrainTask:
    """One rollout's training, or that of its next part. Every rank gets the same task and cuts out its own share."""

    rollout_id: int
    groups: tuple[ReleasedGroup, ...]  # in uid order
    tables: tuple[str, ...]  # besides `rollout` and `media`
    divisors: tuple[float, ...]  # see AdvantageReport
    score_reference: bool = False  # the actor computes ref_logprobs with its kept copy
    score_old: bool = False  # the actor computes old_logprobs before its first step
    first: bool = True  # part of the rollout
    last: bool = True
    update: bool = True  # False: the weights stay as they are (--num-critic-only-steps)


@dataclass(frozen=True)
class TrainReport:
    rollout_id: int
    num_steps: int
    metrics: Mapping[str, tuple[float, float]]  # {metric: (sum, count)} over all steps
    gauges: Mapping[str, float]  # of the last step
    seconds: Mapping[str, float]
    engine_difference: Difference | None = None  # |engine - trainer| log-prob before the first step
    steps: tuple[Mapping[str, Any], ...] = ()  # one an optimizer step, as `events.Trained` keeps it, without divisor
    checksums: Mapping[str, Mapping[tuple[int, int], str]] = field(default_factory=dict)  # {column: {uid: crc32}}
    stop_requested: bool = False


@dataclass(frozen=True)
class Settled:
    """The actor between two rollouts, or stopped inside one."""

    contained: int | None  # rollouts in the weights; None: some optimizer steps of a rollout, not all
    num_steps: int  # optimizer steps taken
    asleep: bool


@dataclass(frozen=True)
class AdvantageReport:
    divisors: tuple[
        float, ...
    ]  # what is counted in each optimizer step that the groups belong to; of a part, its share
    metrics: Mapping[str, tuple[float, float]]
    stop_requested: bool = False


@dataclass(frozen=True)
class ForwardReport:
    wait_s: float
    busy_s: float
    stop_requested: bool = False


@dataclass(frozen=True)
class EvalReport:
    version: int
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class EngineStatus:
    """One engine after an install."""

    engine: str
    version: int
    ok: bool
    stall_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class EngineOrder:
    """What the controller is to do with the engines, asked for at the rollout role's door."""

    kind: str  # scale_out | scale_in | recover
    request_id: str
    engines: tuple[str, ...] = ()  # to be removed
    count: int = 0  # to be added
    force: bool = False  # abort what runs on a leaving engine at once
    timeout_s: float | None = None


class RolloutHandle(Protocol):
    async def dataset(self) -> tuple[int, str]:
        """Rows and digest of the prompt data."""
        ...

    async def admit(self, orders: tuple[GroupOrder, ...]) -> None: ...

    async def sync(self, files: tuple[str, ...]) -> int:
        """Force the journal and these trace files to the disk; returns the journal's next sequence number."""
        ...

    async def restore(self, groups: tuple[StoredGroup, ...], folder: str) -> tuple[AcceptedGroup, ...]:
        """Take finished groups back from the trace in `folder`; returns those that are whole there."""
        ...

    async def report(self, need: int, patience_s: float) -> RolloutReport:
        """Wait until `need` groups are accepted, or what runs can no longer give them, at most `patience_s`."""
        ...

    async def abandon(self, groups: tuple[int, ...]) -> None:
        """Stop groups that were dropped by a decision, and forget them."""
        ...

    async def release(self, rollout_id: int, groups: tuple[int, ...], last: bool = True) -> ReleaseReport:
        """Put groups on the bus, `last` those that end the rollout."""
        ...

    async def install(self, manifest: WeightManifest) -> tuple[EngineStatus, ...]: ...

    async def join_engine(self, name: str, url: str, manifest: WeightManifest) -> EngineStatus:
        """Take an engine in and install a version on it; it gets no requests before `serve_engine`."""
        ...

    async def serve_engine(self, name: str) -> None: ...

    async def retire_engine(self, name: str) -> None:
        """No new requests for this engine; those that run go on."""
        ...

    async def drain_engine(self, name: str, timeout_s: float) -> bool:
        """Wait until a retired engine runs nothing, then abort the rest -> whether nothing had to be aborted."""
        ...

    async def forget_engine(self, name: str) -> None: ...

    async def next_engine_order(self, patience_s: float) -> EngineOrder | None: ...

    async def engine_order_update(self, request_id: str, changes: Mapping[str, Any]) -> None: ...

    async def offload(self) -> None:
        """Free the engines' memory for training: abort what runs, flush, sleep."""
        ...

    async def onload(self, tags: tuple[str, ...]) -> None:
        """Give memory back to the engines: "weights" before an install, "kv_cache" after it."""
        ...

    async def evaluate(self, rollout_id: int, version: int) -> EvalReport: ...

    async def drop(self, partition: str) -> None: ...

    async def engines(self) -> dict[str, Any]:
        """{engine: url, version, health, exactness}, asked now."""
        ...

    async def set_step(self, step: int) -> None: ...


class ActorHandle(Protocol):
    async def score(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport: ...

    async def train(self, task: TrainTask) -> TrainReport: ...

    async def propose(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport:
        """Write the likeliest ids of each token under the weights before training: the table `student`."""
        ...

    async def publish(self, version: int) -> WeightManifest: ...

    async def refresh_reference(self) -> None: ...

    async def settle(self) -> Settled:
        """Wait for the work under way, then say what the weights contain."""
        ...

    async def save(self, folder: str, reference: str | None = None) -> None:
        """Write what training goes on from; `reference` is a second folder, for the reference that it keeps."""
        ...

    async def load(self, folder: str, contained: int, reference: str | None = None) -> None: ...

    async def export_hf(self, folder: str) -> None: ...

    async def offload(self) -> None: ...

    async def onload(self) -> None: ...


class ForwardHandle(Protocol):
    async def score(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport: ...

    async def load_version(self, manifest: WeightManifest) -> None: ...

    async def save(self, folder: str) -> None: ...

    async def load(self, folder: str) -> None: ...


class CriticHandle(Protocol):
    async def score(
        self, rollout_id: int, groups: tuple[ReleasedGroup, ...], first: bool = True, last: bool = True
    ) -> ForwardReport:
        """Write the values of a rollout, or of its next part, under the weights before its training."""
        ...

    async def train(self, task: TrainTask) -> TrainReport: ...

    async def settle(self) -> Settled: ...

    async def save(self, folder: str) -> None: ...

    async def load(self, folder: str, contained: int) -> None: ...

    async def offload(self) -> None: ...

    async def onload(self) -> None: ...


class AdvantagesHandle(Protocol):
    async def compute(self, rollout_id: int, groups: tuple[int, ...], last: bool = True) -> AdvantageReport: ...


@dataclass
class Roles:
    """The handles that a deployment gives to the controller; None where the mode has no such role."""

    rollout: RolloutHandle
    actor: ActorHandle
    advantages: AdvantagesHandle
    reference: ForwardHandle | None = None
    actor_fwd: ForwardHandle | None = None
    critic: CriticHandle | None = None
    teacher: ForwardHandle | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # rank info, engine info, addresses
