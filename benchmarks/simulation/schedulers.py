# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Schedulers with one mistake each. Whoever looks for mistakes must find every one of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

from relax.schedule import events as ev
from relax.schedule.scheduler import GateSettings, Scheduler

NEVER = -1 << 30  # older than any version


class _WiderSettings(GateSettings):
    @property
    def capacity(self) -> int:
        return super().capacity + 1


class WiderGate(Scheduler):
    """One group more than (max_staleness + 1) rollouts may be open."""

    def __init__(self, settings: GateSettings) -> None:
        super().__init__(_WiderSettings(**vars(settings)))


class OneRolloutMore(Scheduler):
    """The gate lets a whole rollout more in, and age is not looked at."""

    def __init__(self, settings: GateSettings) -> None:
        super().__init__(replace(settings, surplus=settings.surplus + settings.rollout_batch_size))

    @property
    def oldest_allowed(self) -> int:
        return NEVER


class OlderAllowed(Scheduler):
    """The bound on age is one rollout too loose."""

    @property
    def oldest_allowed(self) -> int:
        return super().oldest_allowed - 1


class ReadsTheBus(Scheduler):
    """A group is freed when its rows are consumed, not when weights with its training serve."""

    def _on_stepped(self, event: ev.Stepped) -> None:
        super()._on_stepped(event)
        for number in self.bound.pop(event.rollout_id):
            del self.open[number]


class ReadsTheBusBlindly(ReadsTheBus):
    """Besides, nothing looks at the age of a group after its admission."""

    @property
    def oldest_allowed(self) -> int:
        return NEVER


class NewestEngine(Scheduler):
    """A group is closed when the first engine holds its training, not the last."""

    @property
    def serving_version(self) -> int:
        return max(self.engines.values(), default=self.published)


class NoDeadlines(Scheduler):
    """The first that finish make a rollout, whatever becomes of the others."""

    def _meeting_deadlines(self, ready: list[int], deadlines: dict[int, int]) -> tuple[int, ...] | None:
        return tuple(ready[: self.settings.rollout_batch_size])


class LaterDeadlines(Scheduler):
    """A group may wait one rollout longer than its age allows."""

    def _meeting_deadlines(self, ready: list[int], deadlines: dict[int, int]) -> tuple[int, ...] | None:
        return super()._meeting_deadlines(ready, {number: deadline + 1 for number, deadline in deadlines.items()})


class ReusesIds(Scheduler):
    """An id is free again once its group is closed."""

    def admit(self, epoch: int, row: int) -> ev.Admitted:
        event = super().admit(epoch, row)
        return replace(event, group=next(n for n in itertools.count() if n not in self.open))

    def _on_admitted(self, event: ev.Admitted) -> None:
        self.next_group = event.group
        super()._on_admitted(event)


class ForgetsOpenGroups(Scheduler):
    """A resume goes on with fresh groups only."""

    def _on_resumed(self, event: ev.Resumed) -> None:
        super()._on_resumed(event)
        self.readmit = set()


class RestoresAsNew(Scheduler):
    """A finished group that is read back after a resume counts from then on."""

    def _on_restored(self, event: ev.Restored) -> None:
        super()._on_restored(replace(event, version=self.published, oldest=self.published))


class KeepsDropped(Scheduler):
    """A dropped group stays open."""

    def _on_dropped(self, event: ev.Dropped) -> None:
        kept = self.open[event.group]
        super()._on_dropped(event)
        self.open[event.group] = kept


class ClosesEarly(Scheduler):
    """A rollout is closed by the version that it was sampled with."""

    def _close(self) -> None:
        for rollout_id in [r for r in self.bound if r <= self.serving_version]:
            for number in self.bound.pop(rollout_id):
                del self.open[number]


class WaitsForTheLost(Scheduler):
    """An engine that has left still holds slots."""

    def _on_engine_left(self, event: ev.EngineLeft) -> None:
        self.engines.pop(event.engine, None)


class AdmitsLate(Scheduler):
    """Groups are admitted although every rollout to come would find them too old."""

    def admissible(self) -> int:
        if not self.engines or self.next_rollout >= self.settings.num_rollouts:
            return 0
        return max(0, self.settings.capacity - len(self.open))


class AdmitsAfterTheEnd(Scheduler):
    """The surplus is admitted again and again once every rollout is bound."""

    def admissible(self) -> int:
        finished = self.next_rollout >= self.settings.num_rollouts
        return int(len(self.open) < self.settings.capacity) if finished and self.engines else super().admissible()


class StopsShort(Scheduler):
    """The end of the run is counted one group too short."""

    def admissible(self) -> int:
        total = self.settings.num_rollouts * self.settings.rollout_batch_size
        return 0 if self.next_group >= total - 1 else super().admissible()


class Overtakes(Scheduler):
    """Deterministic mode doesn't wait for a smaller id that still runs."""

    def bind(self) -> ev.Bound | None:
        size = self.settings.rollout_batch_size
        if self.next_rollout >= self.settings.num_rollouts or len(self.accepted) < size:
            return None
        return ev.Bound(self.next_rollout, tuple(sorted(self.accepted)[:size]), last=True)


class KeepsSurplus(Scheduler):
    """What over-sampling generated in vain is never dropped."""

    def unusable(self) -> list[ev.Dropped]:
        return []
