# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Mistakes planted in classes of the product, one at a time: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulation import schedulers
from benchmarks.simulation.schedule import play
from relax.backends.tiny.engine import EchoEngine
from relax.backends.tiny.policy import WEIGHT_NAME
from relax.components.engines import EngineFleet
from relax.components.messages import AcceptedGroup, RolloutReport
from relax.core.checkpoint import RunState
from relax.core.prompt_order import PromptOrder
from relax.core.training_loop import TrainingLoop
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule import events as ev


class OverwritingBus(LocalBus):
    """A second put of the same row replaces the first."""

    async def put(self, partition: str, table: str, blocks: Iterable[Block]) -> None:
        blocks = list(blocks)
        rows = self._blocks.get(partition, {}).get(table, {})
        for block in blocks:
            rows.pop(block.uid, None)
        await super().put(partition, table, blocks)


class ForgetfulOrder(PromptOrder):
    """The prompt of a group that nobody used is not drawn again."""

    def draw_again(self, epoch: int, row: int) -> None: ...


class InstallsFirst(TrainingLoop):
    """Engines get weights before the journal says that there are any."""

    async def _install(self, manifest: WeightManifest) -> float:
        await self.roles.rollout.install(manifest)
        await self.clock.sleep(60.0)
        return await super()._install(manifest)


class BelievesTwice(TrainingLoop):
    """A report that arrives twice counts twice."""

    async def _apply(self, report: RolloutReport) -> None:
        self._last_report = 0
        await super()._apply(report)


class LosesOpenGroups(TrainingLoop):
    """A resume takes back what was finished, and forgets what was being generated."""

    def take_back(self, state: RunState, restored: Sequence[AcceptedGroup]) -> None:
        super().take_back(state, restored)
        self.order._again.clear()
        self.scheduler.readmit.clear()


class BreaksTheChain(TrainingLoop):
    """A resume starts with an empty chain of digests."""

    def take_back(self, state: RunState, restored: Sequence[AcceptedGroup]) -> None:
        super().take_back(state, restored)
        self.digest = ""


class KeepsSending(EngineFleet):
    """The router is not told of an engine that missed a version."""

    async def _list(self, name: str, *, serves: bool) -> None:
        if serves:
            await super()._list(name, serves=serves)


class TornEngine(EchoEngine):
    """Weights change while they are being loaded."""

    async def weights_from_disk(self, folder: Path, version: int, **options: Any) -> None:
        await super().weights_from_disk(folder, version, **options)
        self._table = self._store.read(folder)[1][WEIGHT_NAME]

    async def pause(self, mode: Any) -> None: ...


class BindsOpenGroups(TrainingLoop):
    """A group is accepted when it is admitted, before it is in the trace."""

    def decide(self, event: ev.Event) -> None:
        super().decide(event)
        if isinstance(event, ev.Admitted):
            super().decide(ev.Accepted(event.group, event.version, event.version))


class DropsQuietly(TrainingLoop):
    """What no rollout may train leaves the scheduler without a word in the journal."""

    def _drop_unusable(self) -> tuple[int, ...]:
        drops = self.scheduler.unusable()
        for event in drops:
            self.scheduler.apply(event)
            order = self._orders.pop(event.group)
            self._finished.pop(event.group, None)
            self.order.draw_again(order.epoch, order.row)
        return tuple(event.group for event in drops)


@dataclass(frozen=True)
class Mistake:
    name: str
    parts: Mapping[str, Any]
    first_seed: int = 0  # the search begins here: earlier schedules are known not to show it


MISTAKES = (
    Mistake(
        "the bus is read: slots are freed when rows are consumed", {"scheduler_class": schedulers.ReadsTheBusBlindly}
    ),
    Mistake("the gate lets one group more in", {"scheduler_class": schedulers.WiderGate}),
    Mistake("the gate lets one rollout more in", {"scheduler_class": schedulers.OneRolloutMore}),
    Mistake("a rollout may be one version too old", {"scheduler_class": schedulers.OlderAllowed}),
    Mistake("deadlines are forgotten", {"scheduler_class": schedulers.NoDeadlines}, 13),
    Mistake("ids are used again", {"scheduler_class": schedulers.ReusesIds}),
    Mistake("a second put is taken", {"bus_class": OverwritingBus}),
    Mistake("dropped prompts are not drawn again", {"order_class": ForgetfulOrder}),
    Mistake("weights are installed before they are published", {"loop_class": InstallsFirst}, 11),
    Mistake("a report counts twice", {"loop_class": BelievesTwice}),
    Mistake("open groups are lost in a resume", {"loop_class": LosesOpenGroups}, 11),
    Mistake("the chain of digests starts anew in a resume", {"loop_class": BreaksTheChain}, 11),
    Mistake("groups are accepted before they are in the trace", {"loop_class": BindsOpenGroups}),
    Mistake("groups are dropped without a word", {"loop_class": DropsQuietly}),
    Mistake("an engine that missed a version gets requests", {"fleet_class": KeepsSending}),
    Mistake("weights change before the switch", {"engine_class": TornEngine}, 53),
)


def find(mistake: Mistake, most: int = 120) -> tuple[int, str] | None:
    """(first seed that shows it, what was found), or None after `most` schedules."""
    for seed in range(mistake.first_seed, mistake.first_seed + most):
        found = play(seed, **mistake.parts).found
        if found:
            return seed, found[0]
    return None
