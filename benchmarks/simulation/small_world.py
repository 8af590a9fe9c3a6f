# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A small world around the product's own `Scheduler`: every move that may happen next, and what each must not do.

The scheduler decides (gate, bind, drops) and changes by events alone. Around it stand producers that start and end
groups on engines, a trainer, weight updates that reach the engines in any order, and faults. What a group's tokens
really are, what each engine really holds and what became of each group is kept here, apart from the scheduler: the
rules below are checked against these, never against what the scheduler believes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from relax.schedule import events as ev
from relax.schedule.scheduler import UNBOUND, GateSettings, GroupState, Scheduler
from relax.utils.errors import InternalError


class Violation(Exception):
    """A rule is broken. `rule` is one of RULES."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


RULES = {
    "age": "no token older than max_staleness is trained",
    "gate": "open groups stay within (max_staleness + 1) rollouts plus the surplus",
    "late": "nothing is admitted that every later rollout would find too old",
    "waste": "policy wait throws nothing away for its age",
    "order": "deterministic binding takes the smallest ids",
    "size": "a rollout has its number of different groups, and rollouts are bound and trained in order",
    "doubled": "a group id is new, or comes back once after a resume; a group is trained once",
    "lost": "an admitted group is trained, dropped with a reason, or open",
    "refused": "the scheduler refuses no move that its own decisions lead to",
    "stuck": "some move other than a fault is possible until the run has ended",
    "endless": "without faults the run ends, whatever the order of moves",
}


@dataclass(frozen=True)
class SmallWorld:
    """What is explored: settings of the gate, and how much of what may happen."""

    settings: GateSettings
    engines: int = 1
    producers: int = 2  # groups that are generated at the same time
    keeps_tokens: bool = True  # a running group goes on over an update (retract, partial rollout); False: starts anew
    interval: int = 1  # rollouts between weight updates
    drops: int = 0  # groups that fail or are filtered out
    departures: int = 0  # engines that miss an update or die
    crashes: int = 0  # ends of the driver, each followed by a resume from the last checkpoint
    scheduler: type[Scheduler] = Scheduler
    unchecked: frozenset[str] = frozenset()  # rules left out, to see what breaking them leads to

    def broken(self, rule: str, text: str) -> None:
        if rule not in self.unchecked:
            raise Violation(rule, text)


@dataclass(frozen=True)
class Checkpoint:
    stepped: int
    next_group: int
    fate: dict[int, str]
    open_groups: tuple[int, ...]  # admitted, not contained
    stored: tuple[tuple[int, int, int], ...]  # finished ones, read back: group, version at admission, oldest token


@dataclass
class State:
    """One situation. `oldest` and `fate` are the truth about groups, `holds` that about engines."""

    scheduler: Scheduler
    holds: dict[str, int]  # engine -> version, left ones included
    running: dict[int, str] = field(default_factory=dict)  # group -> engine
    oldest: dict[int, int] = field(default_factory=dict)  # group that has tokens -> version of the oldest
    fate: dict[int, str] = field(default_factory=dict)  # group -> "open", "trained" or "dropped"
    checkpoint: Checkpoint | None = None
    drops: int = 0
    departures: int = 0
    crashes: int = 0

    def copy(self) -> State:
        new = _copy(self)
        new.scheduler = copy_scheduler(self.scheduler)
        new.holds, new.running = self.holds.copy(), self.running.copy()
        new.oldest, new.fate = self.oldest.copy(), self.fate.copy()
        return new


def copy_scheduler(scheduler: Scheduler) -> Scheduler:
    new = _copy(scheduler)
    for name, value in vars(scheduler).items():
        if name == "open":
            new.open = {number: _copy(group) for number, group in value.items()}
        elif name == "bound":
            new.bound = {number: list(groups) for number, groups in value.items()}
        elif type(value) in (dict, list, set):  # counters are for metrics: no decision reads them, all may share them
            setattr(new, name, value.copy())
    return new


def _copy(group: Any) -> Any:
    new = object.__new__(type(group))
    new.__dict__.update(group.__dict__)
    return new


def first_state(world: SmallWorld) -> State:
    names = [f"engine-{n}" for n in range(world.engines)]
    scheduler = world.scheduler(world.settings)
    for name in names:
        scheduler.apply(ev.EngineJoined(name, 0))
    return State(
        scheduler,
        dict.fromkeys(names, 0),
        drops=world.drops,
        departures=world.departures,
        crashes=world.crashes,
    )


def has_ended(world: SmallWorld, state: State) -> bool:
    """All rollouts are trained, their weights serve in every engine, and what was left over is gone."""
    scheduler = state.scheduler
    all_trained = scheduler.stepped == world.settings.num_rollouts == scheduler.published
    return all_trained and bool(scheduler.engines) and not scheduler.open


# ---------------------------------------------------------------------- moves


@dataclass(frozen=True)
class Move:
    text: str
    state: State
    fault: bool = False


def moves(world: SmallWorld, state: State) -> Iterator[Move]:
    """Every next situation. Raises `Violation` when getting there breaks a rule."""
    for text, fault, act in _acts(world, state):
        new = state.copy()
        try:
            act(new)
        except InternalError as error:
            raise Violation("refused", f"{text}: {error}") from error
        except Violation as violation:
            violation.args = (f"{violation.args[0]} ({text})",)
            raise
        _nothing_lost(new)
        yield Move(text, new, fault)


def _acts(world: SmallWorld, state: State) -> Iterator[tuple[str, bool, Any]]:
    scheduler = state.scheduler
    if scheduler.admissible():
        yield "admit", False, lambda new: _admit(world, new)
    yield from _generation(world, state)
    if scheduler.bind() is not None:
        yield "bind", False, lambda new: _bind(world, new)
    if scheduler.unusable():
        yield "drop what no rollout may train", False, lambda new: _abandon(world, new)
    due = scheduler.stepped > scheduler.published and (
        scheduler.stepped % world.interval == 0 or scheduler.stepped == world.settings.num_rollouts
    )
    if scheduler.next_rollout > scheduler.stepped and not due:
        yield f"train rollout {scheduler.stepped}", False, _train
    if due:
        yield (
            f"publish version {scheduler.stepped}",
            False,
            lambda new: new.scheduler.apply(ev.Published(new.scheduler.stepped)),
        )
    yield from _engines(world, state)
    if world.crashes:
        yield from _crashes(state)


def _generation(world: SmallWorld, state: State) -> Iterator[tuple[str, bool, Any]]:
    """Groups start on any serving engine and end in any order; alike ones stand for each other."""
    scheduler, seen = state.scheduler, set()
    for number, group in scheduler.open.items():
        if group.state is not GroupState.ADMITTED:
            continue
        name = state.running.get(number)
        alike = number if world.settings.by_id else (group.version, name, state.oldest.get(number))
        if alike in seen:
            continue
        seen.add(alike)
        if name is None and len(state.running) < world.producers:
            for engine in scheduler.engines:
                yield f"start group {number} on {engine}", False, _starter(number, engine)
        elif name is not None:
            yield f"end group {number}", False, _ender(number)
        if state.drops:
            yield f"group {number} fails", True, _failer(number)


def _engines(world: SmallWorld, state: State) -> Iterator[tuple[str, bool, Any]]:
    scheduler = state.scheduler
    for name, version in state.holds.items():
        if name in scheduler.engines:
            behind = version < scheduler.published
            if behind:
                yield f"install on {name}", False, _installer(name, world.keeps_tokens)
            if state.departures:
                yield f"{name} dies", True, _leaver(name, dies=True)
                if behind:
                    yield f"{name} misses the update", True, _leaver(name, dies=False)
        else:  # nobody may need an engine to come back as long as another one serves
            yield f"{name} joins", bool(scheduler.engines), _joiner(name)


def _crashes(state: State) -> Iterator[tuple[str, bool, Any]]:
    saved = state.checkpoint.stepped if state.checkpoint is not None else 0
    if state.crashes and state.scheduler.stepped > saved:
        yield "save a checkpoint", True, _save
    if state.crashes and state.checkpoint is not None:
        yield "crash and resume", True, _resume


def _admit(world: SmallWorld, state: State) -> None:
    """What the loop does in one go: groups of before a resume first, all of them that the gate lets in."""
    scheduler = state.scheduler
    if not scheduler.readmit:
        _admitted(world, state, scheduler.admit(0, 0))
    for number in sorted(scheduler.readmit):
        if scheduler.admissible():
            _admitted(world, state, scheduler.admit_again(number, 0, 0))


def _admitted(world: SmallWorld, state: State, event: ev.Admitted) -> None:
    settings, scheduler = world.settings, state.scheduler
    serving = min(state.holds[name] for name in scheduler.engines)
    if event.group in state.fate and event.group not in scheduler.readmit:
        raise Violation("doubled", f"id {event.group} was used before")
    if serving + settings.max_staleness < scheduler.next_rollout:
        world.broken("late", f"group {event.group} at version {serving}, next is rollout {scheduler.next_rollout}")
    scheduler.apply(event)
    state.fate[event.group] = "open"
    waiting = sum(fate == "open" for number, fate in state.fate.items() if number not in scheduler.readmit)
    training = settings.rollout_batch_size * max(0, scheduler.stepped - serving)
    limit = (settings.max_staleness + 1) * settings.rollout_batch_size + settings.surplus
    if waiting + training > limit:
        world.broken("gate", f"{waiting + training} groups are open, {limit} may be")


def _starter(number: int, engine: str) -> Any:
    def act(state: State) -> None:
        state.running[number] = engine
        state.oldest[number] = state.holds[engine]

    return act


def _ender(number: int) -> Any:
    def act(state: State) -> None:
        del state.running[number]
        state.scheduler.apply(ev.Accepted(number, state.oldest[number], max(state.holds.values())))

    return act


def _failer(number: int) -> Any:
    def act(state: State) -> None:
        state.drops -= 1
        _drop(state, ev.Dropped(number, "filtered"))

    return act


def _drop(state: State, event: ev.Dropped) -> None:
    if state.fate.get(event.group) != "open":
        raise Violation("doubled", f"group {event.group} is dropped, and it is {state.fate.get(event.group)}")
    if not event.reason:
        raise Violation("lost", f"group {event.group} is dropped without a reason")
    state.scheduler.apply(event)
    state.fate[event.group] = "dropped"
    state.running.pop(event.group, None)
    state.oldest.pop(event.group, None)


def _abandon(world: SmallWorld, state: State) -> None:
    for event in state.scheduler.unusable():
        if event.reason == "stale" and world.settings.stale_policy == "wait":
            world.broken("waste", f"group {event.group} is dropped as stale")
        _drop(state, event)


def _bind(world: SmallWorld, state: State) -> None:
    scheduler, settings = state.scheduler, world.settings
    event = scheduler.bind()
    assert event is not None
    rollout, groups = event.rollout_id, event.groups
    whole = [*scheduler.bound.get(rollout, ()), *groups]  # with the parts that were bound before
    expected = settings.rollout_batch_size if event.last else len(whole)
    if len(set(groups)) != settings.part_size or len(set(whole)) != expected:
        raise Violation("size", f"rollout {rollout} has {len(set(whole))} groups, {len(set(groups))} in this part")
    for number in groups:
        if state.fate.get(number) != "open":
            raise Violation("doubled", f"group {number} is {state.fate.get(number)} and is bound to rollout {rollout}")
        age = rollout - state.oldest[number]
        if age > settings.max_staleness:
            raise Violation("age", f"a token of group {number} is {age} rollouts old in rollout {rollout}")
    if settings.by_id:
        usable = rollout - settings.max_staleness
        before = [
            g.group
            for g in scheduler.open.values()
            if g.state in UNBOUND and g.group < max(groups) and g.group not in groups and g.version >= usable
        ]
        if before:
            raise Violation("order", f"rollout {rollout} takes {groups}, and {before} come before")
    scheduler.apply(event)


def _train(state: State) -> None:
    scheduler = state.scheduler
    rollout = scheduler.stepped
    groups = tuple(g.group for g in scheduler.open.values() if g.rollout_id == rollout)
    scheduler.apply(ev.Taken(rollout, 0))
    scheduler.apply(ev.Stepped(rollout, ""))
    if not groups:
        raise Violation("size", f"rollout {rollout} is trained on nothing")
    for number in groups:
        if state.fate[number] != "open":
            raise Violation("doubled", f"group {number} is trained, and it is {state.fate[number]}")
        state.fate[number] = "trained"
        del state.oldest[number]


def _installer(name: str, keeps_tokens: bool) -> Any:
    def act(state: State) -> None:
        state.holds[name] = state.scheduler.published
        if not keeps_tokens:
            _start_anew(state, name)
        state.scheduler.apply(ev.Installed(name, state.scheduler.published))

    return act


def _leaver(name: str, *, dies: bool) -> Any:
    """What runs on an engine that missed an update goes on there, on its old weights; of a dead one it starts anew."""

    def act(state: State) -> None:
        state.departures -= 1
        if dies:
            _start_anew(state, name)
        state.scheduler.apply(ev.EngineLeft(name, "planted"))

    return act


def _joiner(name: str) -> Any:
    def act(state: State) -> None:
        state.holds[name] = state.scheduler.published
        state.scheduler.apply(ev.EngineJoined(name, state.scheduler.published))

    return act


def _start_anew(state: State, name: str) -> None:
    for number in [number for number, engine in state.running.items() if engine == name]:
        del state.running[number], state.oldest[number]


def _save(state: State) -> None:
    scheduler = state.scheduler
    bound = [number for rollout in sorted(scheduler.bound) for number in scheduler.bound[rollout]]
    finished = [n for n in (*bound, *scheduler.accepted) if state.fate[n] == "open"]
    state.checkpoint = Checkpoint(
        scheduler.stepped,
        scheduler.next_group,
        dict(state.fate),
        tuple(number for number, fate in state.fate.items() if fate == "open"),
        tuple((n, scheduler.open[n].version, state.oldest[n]) for n in finished),
    )


def _resume(state: State) -> None:
    saved, scheduler = state.checkpoint, state.scheduler
    assert saved is not None
    state.crashes -= 1
    state.running, state.oldest, state.fate = {}, {}, dict(saved.fate)
    state.holds = dict.fromkeys(state.holds, saved.stepped)
    scheduler.apply(ev.Resumed(saved.stepped - 1, saved.next_group, saved.open_groups))
    for number, version, oldest in saved.stored:
        scheduler.apply(ev.Restored(number, 0, 0, version, oldest, oldest, "", 0, 0, ""))
        state.oldest[number] = oldest
    scheduler.apply(ev.Published(saved.stepped))


def _nothing_lost(state: State) -> None:
    scheduler = state.scheduler
    known = {g.group for g in scheduler.open.values() if g.state is not GroupState.TRAINED} | scheduler.readmit
    truth = {number for number, fate in state.fate.items() if fate == "open"}
    if truth - known:
        raise Violation("lost", f"{sorted(truth - known)} are open, and the scheduler forgot them")
    if known - truth:
        raise Violation("doubled", f"{sorted(known - truth)} have ended, and the scheduler still waits for them")


# ---------------------------------------------------------------------- alike situations


def key(world: SmallWorld, state: State) -> tuple[Any, ...]:
    """Equal for situations that differ in names only: engines are alike, and in free mode so are groups."""
    scheduler = state.scheduler
    if world.settings.by_id:
        return (*_common(world, state), *_by_id(state))
    oldest, running = state.oldest, state.running
    accepted = tuple((scheduler.open[n].version, oldest[n]) for n in scheduler.accepted)
    pending, at = [], {name: [] for name in state.holds}
    for number, group in scheduler.open.items():
        if group.state is GroupState.ADMITTED:
            name = running.get(number)
            if name is None:
                pending.append(group.version)
            else:
                at[name].append((group.version, oldest[number]))
    engines = sorted(
        (scheduler.engines.get(name, -1), version, tuple(sorted(at[name]))) for name, version in state.holds.items()
    )
    return (*_common(world, state), accepted, tuple(sorted(pending)), tuple(engines))


def _by_id(state: State) -> tuple[Any, ...]:
    scheduler = state.scheduler
    names = sorted(state.holds, key=lambda name: (scheduler.engines.get(name, -1), state.holds[name]))
    place = {name: n for n, name in enumerate(names)}
    engines = tuple((scheduler.engines.get(name, -1), state.holds[name]) for name in names)
    groups = tuple(
        (g.state is GroupState.ACCEPTED, g.version, state.oldest.get(n, -1), place.get(state.running.get(n, ""), -1))
        for n, g in sorted(scheduler.open.items())
        if g.state in UNBOUND
    )
    return engines, groups


def _as_saved(world: SmallWorld, saved: Checkpoint) -> tuple[Any, ...]:
    """What a resume would read back, and how much it would admit again."""
    stored = {number: (version, oldest) for number, version, oldest in saved.stored}
    if world.settings.by_id:
        return tuple(stored.get(number) for number in sorted(saved.open_groups))
    return (*stored.values(), len(saved.open_groups))


def _common(world: SmallWorld, state: State) -> tuple[Any, ...]:
    scheduler, saved = state.scheduler, state.checkpoint
    kept = () if saved is None else (saved.stepped, *_as_saved(world, saved))
    return (
        scheduler.next_rollout,
        scheduler.stepped,
        scheduler.published,
        tuple(sorted(scheduler.bound)),
        scheduler.seats,
        len(scheduler.open),
        state.drops,
        state.departures,
        state.crashes,
        kept,
        len(scheduler.readmit),
    )
