# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Who may start, what makes a rollout, and when a version counts: the pure heart of every mode.

Life of a group:

    admitted -> accepted -> bound -> trained -> (closed: a version with its training serves everywhere)
        |           |
        +-----------+--> dropped

The gate: a new group is admitted iff `open groups < (max_staleness + 1) * rollout_batch_size`, where a group is open
from admission until a version that contains its training is installed in every serving engine, or until it is
dropped. (Were a group freed when its rows are consumed, ages would reach max_staleness + 1.)

The bind: the gate alone bounds how many groups wait, not how long one of them does. A slow group that is overtaken
again and again would grow too old. A group admitted at version v has the deadline v + max_staleness: the last
rollout that may train it. `bind` takes groups in completion order as long as those that are left can still meet their
deadlines, `max_staleness` rollouts later at most. So no token is ever too old, nothing is thrown away, and
slow (long) answers are trained as often as quick ones. Policy "drop" takes completion order as it is and drops what
grew too old; over-sampling implies it, since its surplus is there to be dropped.

Deterministic mode: results are taken in the order of their group ids, a rollout is made of the accepted groups with
the smallest ids, and an engine changes its version only when the gate has nothing left to admit under the old one
(`exhausted`). So no decision follows from which of two things happened first.

Parts: with `parts` > 1 a rollout is bound piece by piece, so that training starts before the last group has ended. By
id (the default) the pieces are the smallest ids in order, which makes the very rollout that would be bound as a whole
in deterministic mode; in arrival order they are what has ended first.

Every change goes through `apply(event)`, so that replaying a journal rebuilds the state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from relax.schedule import events as ev
from relax.utils.errors import InternalError


class GroupState(Enum):
    ADMITTED = "admitted"
    ACCEPTED = "accepted"
    BOUND = "bound"
    TRAINED = "trained"


UNBOUND = (GroupState.ADMITTED, GroupState.ACCEPTED)


@dataclass(frozen=True)
class GateSettings:
    """What the gate needs to know. `surplus` is over_sampling_batch_size - rollout_batch_size."""

    rollout_batch_size: int
    max_staleness: int
    num_rollouts: int
    surplus: int = 0
    deterministic: bool = False  # decisions follow group ids and versions, never the order of arrival
    stale_policy: str = "wait"  # "wait" for a group at its deadline, or "drop" it once it is too old
    parts: int = 1  # equal pieces in which a rollout is bound
    arrival_order: bool = False  # of the pieces; False: smallest ids first

    @property
    def capacity(self) -> int:
        """Most groups that may be open: (max_staleness + 1) rollouts, plus what over-sampling may waste."""
        return (self.max_staleness + 1) * self.rollout_batch_size + self.surplus

    @property
    def part_size(self) -> int:
        """Groups that are bound at a time."""
        return self.rollout_batch_size // self.parts

    @property
    def by_id(self) -> bool:
        """Whether the smallest ids are bound, not the first finished."""
        return self.deterministic or (self.parts > 1 and not self.arrival_order)


@dataclass
class OpenGroup:
    group: int
    version: int  # oldest serving version at admission
    state: GroupState = GroupState.ADMITTED
    oldest: int | None = None  # smallest version of its sampled tokens, known once accepted
    rollout_id: int | None = None

    @property
    def token_version(self) -> int:
        """The version of its oldest token; until that is known, the oldest that it can be sampled with."""
        return self.version if self.oldest is None else self.oldest


@dataclass
class Scheduler:
    """Pure state of one run. Decisions are methods that return events; nothing changes before `apply`."""

    settings: GateSettings
    next_group: int = 0
    next_rollout: int = 0  # the rollout being bound
    open: dict[int, OpenGroup] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)  # unbound, in completion order
    bound: dict[int, list[int]] = field(default_factory=dict)  # rollouts that are bound and not yet closed
    engines: dict[str, int] = field(default_factory=dict)  # serving engine -> installed version
    published: int = 0
    stepped: int = 0  # rollouts trained so far
    drops: Counter[str] = field(default_factory=Counter)
    readmit: set[int] = field(default_factory=set)  # groups of an earlier incarnation, to be admitted again
    stale_groups_trained: int = 0
    ages: Counter[int] = field(default_factory=Counter)  # age of the oldest token -> groups bound

    # ------------------------------------------------------------------ decisions

    @property
    def serving_version(self) -> int:
        """The oldest version in use: what a group admitted now may be sampled with."""
        return min(self.engines.values(), default=self.published)

    @property
    def oldest_allowed(self) -> int:
        """The oldest weight version that the next rollout may train."""
        return self.next_rollout - self.settings.max_staleness

    def admissible(self) -> int:
        """How many groups may be admitted now."""
        if not self.engines or self.exhausted:
            return 0
        room = self.settings.capacity - len(self.open)
        # What the rest of the run can still use; without the cap the end of a run generates for nobody.
        useful = self.settings.num_rollouts * self.settings.rollout_batch_size + self.settings.surplus
        already = (self.next_rollout + 1) * self.settings.rollout_batch_size - self.seats + self._unbound()
        return max(0, min(room, useful - already))

    @property
    def exhausted(self) -> bool:
        """Whether no group that were admitted under the serving version could still be trained."""
        return self.serving_version < self.oldest_allowed or self.next_rollout >= self.settings.num_rollouts

    def admit(self, epoch: int, row: int) -> ev.Admitted:
        if self.admissible() < 1:
            raise InternalError("admit() was called while the gate is closed")
        return ev.Admitted(self.next_group, epoch, row, self.serving_version)

    def admit_again(self, group: int, epoch: int, row: int) -> ev.Admitted:
        """Admit a group of an earlier incarnation under its own id."""
        if self.admissible() < 1 or group not in self.readmit:
            raise InternalError(f"group {group} cannot be admitted again")
        return ev.Admitted(group, epoch, row, self.serving_version)

    def unusable(self) -> list[ev.Dropped]:
        """Unbound groups that no later rollout may train: over-sampling's surplus after a bind."""
        finished = self.next_rollout >= self.settings.num_rollouts
        drops = []
        for group in self.open.values():
            if group.state in UNBOUND and (finished or group.token_version < self.oldest_allowed):
                reason = "surplus" if finished or self.settings.surplus else "stale"
                drops.append(ev.Dropped(group.group, reason))
        return drops

    def bind(self) -> ev.Bound | None:
        """The next rollout or its next part, once enough groups are accepted."""
        size = self.settings.part_size
        if self.next_rollout >= self.settings.num_rollouts or len(self.accepted) < size:
            return None
        # Age is looked at here, not where a group came in: versions pass while it waits. `unusable` drops the others.
        usable = {
            group.group: group
            for group in self.open.values()
            if group.state in UNBOUND and group.token_version >= self.oldest_allowed
        }
        ready = [number for number in self.accepted if number in usable]
        if len(ready) < size:
            return None
        if self.settings.by_id:
            chosen = tuple(sorted(ready)[:size])
            if any(g.state is GroupState.ADMITTED and number < chosen[-1] for number, g in usable.items()):
                return None
        elif self.settings.surplus or self.settings.stale_policy == "drop":
            chosen = tuple(ready[:size])
        else:
            deadlines = {
                number: min(g.version, g.token_version) + self.settings.max_staleness for number, g in usable.items()
            }
            feasible = self._meeting_deadlines(ready, deadlines)
            if feasible is None:
                return None
            chosen = feasible
        return ev.Bound(self.next_rollout, chosen, last=self.seats == size)

    def _meeting_deadlines(self, ready: list[int], deadlines: dict[int, int]) -> tuple[int, ...] | None:
        """The first finished groups, in completion order, that leave every deadline of the others feasible.

        With N(d) unbound groups of deadline <= d, the rollouts r + 1 .. d can take (d - r) * rollout_batch_size of
        them. So at least N(d) - (d - r) * rollout_batch_size of the free seats of rollout r belong to deadlines <= d,
        and at most the rest to later ones.
        """
        size = self.settings.part_size
        pending = Counter(deadlines.values())
        seats_after: dict[int, int] = {}  # deadline -> seats of this rollout that later deadlines may take
        due = 0
        for deadline in sorted(pending):
            due += pending[deadline]
            must = due - max(0, deadline - self.next_rollout) * self.settings.rollout_batch_size
            seats_after[deadline] = self.seats - max(0, must)
        chosen: list[int] = []
        for number in ready:
            earlier = [d for d in seats_after if d < deadlines[number]]
            if all(seats_after[d] > 0 for d in earlier):
                chosen.append(number)
                for d in earlier:
                    seats_after[d] -= 1
                if len(chosen) == size:
                    return tuple(chosen)
        return None

    def needed(self) -> int:
        """Accepted groups still missing for the next rollout or part."""
        if self.next_rollout >= self.settings.num_rollouts:
            return 0
        return max(0, self.settings.part_size - len(self.accepted))

    @property
    def seats(self) -> int:
        """Groups that the next rollout still takes."""
        return self.settings.rollout_batch_size - len(self.bound.get(self.next_rollout, ()))

    @property
    def finished(self) -> bool:
        return self.stepped >= self.settings.num_rollouts

    def _unbound(self) -> int:
        return sum(g.state in UNBOUND for g in self.open.values())

    # ------------------------------------------------------------------ state

    def apply(self, event: ev.Event) -> None:
        """Change state by one decision; observations change nothing. Raises InternalError for an impossible move."""
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None:
            handler(event)

    def _on_engine_joined(self, event: ev.EngineJoined) -> None:
        self._expect_published(event)
        self.engines[event.engine] = event.version
        self._close()  # where it is the first one back, nobody else tells that a version is installed

    def _on_engine_left(self, event: ev.EngineLeft) -> None:
        self.engines.pop(event.engine, None)
        self._close()

    def _on_resumed(self, event: ev.Resumed) -> None:
        """Everything after the checkpoint is undone; engines join anew."""
        self.stepped = self.next_rollout = self.published = event.rollout_id + 1
        self.next_group = event.next_group
        self.readmit = set(event.readmit)
        self.open.clear()
        self.accepted.clear()
        self.bound.clear()
        self.engines.clear()

    def _on_restored(self, event: ev.Restored) -> None:
        """A group whose slot of the gate was taken in the earlier incarnation: it needs no room now."""
        if event.group not in self.readmit:
            raise InternalError(f"group {event.group} is not one that the checkpoint left open")
        self.readmit.remove(event.group)
        self.open[event.group] = OpenGroup(event.group, event.version, GroupState.ACCEPTED, event.oldest)
        self.accepted.append(event.group)

    def _on_admitted(self, event: ev.Admitted) -> None:
        if event.group in self.readmit:
            self.readmit.remove(event.group)
        elif event.group == self.next_group:
            self.next_group += 1
        else:
            raise InternalError(f"group ids are never reused or skipped: got {event.group}, next is {self.next_group}")
        self.open[event.group] = OpenGroup(event.group, event.version)

    def _on_accepted(self, event: ev.Accepted) -> None:
        group = self._expect(event.group, GroupState.ADMITTED)
        group.state, group.oldest = GroupState.ACCEPTED, event.oldest
        self.accepted.append(event.group)

    def _on_dropped(self, event: ev.Dropped) -> None:
        group = self._expect(event.group, GroupState.ADMITTED, GroupState.ACCEPTED)
        if group.state is GroupState.ACCEPTED:
            self.accepted.remove(event.group)
        del self.open[event.group]
        self.drops[event.reason] += 1

    def _on_bound(self, event: ev.Bound) -> None:
        if event.rollout_id != self.next_rollout:
            raise InternalError(f"rollout {event.rollout_id} was bound, next is {self.next_rollout}")
        if len(event.groups) > self.seats:
            raise InternalError(
                f"rollout {event.rollout_id} has {self.seats} seats left for {len(event.groups)} groups"
            )
        for number in event.groups:
            group = self._expect(number, GroupState.ACCEPTED)
            group.state, group.rollout_id = GroupState.BOUND, event.rollout_id
            self.accepted.remove(number)
            age = event.rollout_id - group.token_version
            self.ages[age] += 1
            if age > self.settings.max_staleness:
                self.stale_groups_trained += 1
        self.bound.setdefault(event.rollout_id, []).extend(event.groups)
        if event.last:
            self.next_rollout += 1

    def _on_stepped(self, event: ev.Stepped) -> None:
        if event.rollout_id != self.stepped:
            raise InternalError(f"rollout {event.rollout_id} was trained, next is {self.stepped}")
        for number in self.bound.get(event.rollout_id, ()):
            self._expect(number, GroupState.BOUND).state = GroupState.TRAINED
        self.stepped += 1

    def _on_published(self, event: ev.Published) -> None:
        if not self.published <= event.version <= self.stepped:
            raise InternalError(f"version {event.version} was published after {self.stepped} rollouts were trained")
        self.published = event.version

    def _on_installed(self, event: ev.Installed) -> None:
        self._expect_published(event)
        if event.engine in self.engines:
            self.engines[event.engine] = event.version
            self._close()

    def _close(self) -> None:
        """Free the groups whose training every serving engine holds."""
        if not self.engines:
            return
        serving = self.serving_version
        for rollout_id in [r for r in self.bound if r < min(serving, self.stepped)]:
            for number in self.bound.pop(rollout_id):
                del self.open[number]

    def _expect_published(self, event: ev.EngineJoined | ev.Installed) -> None:
        if event.version > self.published:
            raise InternalError(f"engine {event.engine} holds version {event.version}, which was never published")

    def _expect(self, number: int, *states: GroupState) -> OpenGroup:
        group = self.open.get(number)
        if group is None or group.state not in states:
            was = "not open" if group is None else group.state.value
            raise InternalError(f"group {number} is {was}, expected {' or '.join(s.value for s in states)}")
        return group
