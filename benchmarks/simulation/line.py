# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Promises along the line of checkpoints that survives: what counts is what the last checkpoint before it contains."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from benchmarks.simulation.twins import NUM_ROWS
from benchmarks.simulation.world import World
from relax.schedule import events as ev
from relax.utils.rng import permutation

DRAWN_AGAIN = ("stale", "surplus")  # a group that nobody used: its prompt comes again


def surviving(worlds: Sequence[World]) -> list[list[ev.Event]]:
    """The events that count, an incarnation each: from the last one back to the checkpoint that each stands upon.

    An incarnation that ended before it had written a checkpoint is not among them.
    """
    line, stands_on = [worlds[-1].journal.events], worlds[-1].stands_on
    for world in reversed(worlds[:-1]):
        if stands_on is None:
            break
        rollout_id, position = stands_on
        events = world.journal.events[:position]
        if any(isinstance(event, ev.Stepped) and event.rollout_id == rollout_id for event in events):
            line.insert(0, events)
            stands_on = world.stands_on
    return line


def line_violations(worlds: Sequence[World]) -> list[str]:
    incarnations = surviving(worlds)
    events = [event for part in incarnations for event in part]
    return [*trained_once(events, worlds[-1]), *prompts_in_order(incarnations, worlds[-1]), *notes(worlds)]


def trained_once(events: list[ev.Event], last: World) -> list[str]:
    """Each admitted group of the line is trained once, or dropped with a reason, or left over at the end."""
    found: list[str] = []
    trained: Counter[int] = Counter()
    dropped: set[int] = set()
    admitted: dict[int, tuple[int, int]] = {}
    bound: defaultdict[int, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, ev.Admitted | ev.Restored):
            prompt = admitted.setdefault(event.group, (event.epoch, event.row))
            if prompt != (event.epoch, event.row):
                found.append(f"group {event.group} was prompt {prompt}, and comes back as {(event.epoch, event.row)}")
        elif isinstance(event, ev.Dropped):
            dropped.add(event.group)
        elif isinstance(event, ev.Bound):
            bound[event.rollout_id] += event.groups
        elif isinstance(event, ev.Resumed):
            bound.clear()
        elif isinstance(event, ev.Stepped):
            trained.update(bound[event.rollout_id])
    found += [f"group {group} was trained {count} times" for group, count in trained.items() if count > 1]
    found += [f"group {group} was dropped and trained" for group in dropped & set(trained)]
    scheduler = last.loop.scheduler
    left = set(scheduler.open) | scheduler.readmit
    lost = set(admitted) - set(trained) - dropped - left
    if lost:
        found.append(f"groups {sorted(lost)} were admitted, and nothing says what became of them")
    return found


def prompts_in_order(incarnations: Sequence[list[ev.Event]], last: World) -> list[str]:
    """New groups take the prompts that wait for another group first, then the next of the data set's order."""
    waiting: deque[tuple[int, int]] = deque()
    prompts: dict[int, tuple[int, int]] = {}
    drawn, found = 0, []
    for events in incarnations:
        for event in events:
            if isinstance(event, ev.Admitted) and event.group not in prompts:
                if waiting:
                    expected = waiting.popleft()
                else:
                    epoch, place = divmod(drawn, NUM_ROWS)
                    expected = (epoch, int(permutation(last.plan.seed, epoch, NUM_ROWS)[place]))
                    drawn += 1
                prompts[event.group] = (event.epoch, event.row)
                if prompts[event.group] != expected:
                    found.append(f"group {event.group} takes prompt {prompts[event.group]}, due was {expected}")
            elif isinstance(event, ev.Dropped) and event.reason in DRAWN_AGAIN:
                waiting.append(prompts[event.group])
    return found


def notes(worlds: Sequence[World]) -> list[str]:
    return [note for world in worlds for note in world.notes]
