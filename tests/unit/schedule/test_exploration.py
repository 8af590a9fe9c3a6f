# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every interleaving of small worlds keeps every rule, and every planted mistake is found by its shortest trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.simulation import schedulers
from benchmarks.simulation.exploration import explore
from benchmarks.simulation.small_world import RULES, SmallWorld, State, key
from relax.schedule.scheduler import GateSettings, Scheduler

SETTINGS = ("surplus", "deterministic", "stale_policy", "parts", "arrival_order")


def world(batch: int, staleness: int, rollouts: int = 3, **options: Any) -> SmallWorld:
    gate = {name: options.pop(name) for name in SETTINGS if name in options}
    return SmallWorld(GateSettings(batch, staleness, rollouts, **gate), **options)


def holds(small: SmallWorld) -> None:
    found = explore(small)
    print(found)
    assert found.violation is None, f"{small}\n{found}"
    assert found.ends > 0


def worlds(staleness: int) -> dict[str, SmallWorld]:
    """Small enough for every test run; two producers and one consumer in each."""
    return {
        "three engines, policy wait": world(1, staleness, engines=3, drops=1),
        "three engines, policy drop": world(1, staleness, engines=3, drops=1, stale_policy="drop"),
        "two groups a rollout, policy wait": world(2, staleness, engines=2),
        "two groups a rollout, policy drop": world(2, staleness, engines=2, stale_policy="drop"),
        "engines miss updates and die": world(1, staleness, engines=2, departures=2, drops=1),
        "running groups start anew at an update": world(1, staleness, engines=2, departures=1, keeps_tokens=False),
        "surplus": world(1, staleness, surplus=1, drops=1),
        "crash and resume": world(1, staleness, engines=2, crashes=1),
        "crash and resume, policy drop": world(1, staleness, stale_policy="drop", crashes=1),
        "parts by id": world(2, staleness, parts=2),
        "parts in arrival order, policy wait": world(2, staleness, parts=2, arrival_order=True),
        "parts in arrival order, policy drop": world(2, staleness, parts=2, arrival_order=True, stale_policy="drop"),
        "deterministic": world(2, staleness, deterministic=True),
        "deterministic, surplus, a group fails": world(1, staleness, deterministic=True, surplus=1, drops=1),
        "deterministic, engines die": world(1, staleness, deterministic=True, engines=2, departures=1),
        "deterministic, crash and resume": world(1, staleness, deterministic=True, crashes=1),
    }


def larger_worlds(staleness: int) -> dict[str, SmallWorld]:
    """Minutes each."""
    return {
        "everything, policy wait": world(1, staleness, 4, engines=2, crashes=1, departures=1, drops=1),
        "everything, policy drop": world(
            1, staleness, 4, engines=2, crashes=1, departures=1, drops=1, stale_policy="drop"
        ),
        "two groups a rollout, crash and resume": world(2, staleness, crashes=1),
        "two groups a rollout, engines die": world(2, staleness, 4, engines=2, departures=1, drops=1),
        "surplus of two, two engines": world(1, staleness, 4, surplus=2, engines=2),
        "surplus, crash and resume": world(1, staleness, 4, surplus=1, crashes=1),
        "deterministic, two groups, surplus": world(2, staleness, surplus=1, deterministic=True, drops=1),
        "parts in arrival order, engines die": world(
            2, staleness, parts=2, arrival_order=True, engines=2, departures=1, drops=1
        ),
        "parts by id, surplus, crash and resume": world(2, staleness, parts=2, surplus=1, crashes=1),
        "three producers": world(2, staleness, 4, producers=3, drops=1),
    }


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("name", worlds(0))
def test_every_rule_holds(name: str, staleness: int):
    """A4, A6: age k is trained, k + 1 is not, and nothing waits for ever, in every interleaving for k = 0, 1, 2."""
    holds(worlds(staleness)[name])


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("name", larger_worlds(0))
def test_every_rule_holds_in_larger_worlds(name: str, staleness: int):
    holds(larger_worlds(staleness)[name])


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("interval", [1, 2, 3])
def test_an_update_interval_ends_exactly_where_the_configuration_lets_it_start(interval: int, staleness: int):
    # update_weights_interval - 1 > max_staleness is refused: that setting waits for weights that wait for it
    found = explore(world(1, staleness, 4, interval=interval))
    assert (found.violation is None) == (interval - 1 <= staleness), found
    assert found.violation is None or found.violation.rule == "stuck"


def test_alike_situations_are_taken_as_one_without_losing_any():
    """The same worlds by name: they pass through the very situations that the shorter exploration visits."""

    def by_name(small: SmallWorld, state: State) -> tuple[Any, ...]:
        short.add(key(small, state))
        scheduler = state.scheduler
        groups = tuple((g.group, g.state.value, g.version, g.rollout_id or 0) for g in scheduler.open.values())
        names = tuple((*sorted(part.items()),) for part in (state.holds, state.running, state.oldest, state.fate))
        counters = (scheduler.next_group, scheduler.next_rollout, scheduler.stepped, scheduler.published)
        return (*counters, groups, tuple(scheduler.accepted), tuple(scheduler.engines.items()), names, state.drops)

    for small in (world(1, 1, engines=2, drops=1), world(1, 1, stale_policy="drop"), world(1, 1, surplus=1)):
        short: set[tuple[Any, ...]] = set()
        long, found = explore(small, identify=by_name), explore(small)
        assert long.violation is None and found.violation is None
        assert len(short) == found.states < long.states


# ---------------------------------------------------------------------- planted mistakes

MISTAKES: list[tuple[type[Scheduler], SmallWorld, str]] = [
    (schedulers.WiderGate, world(2, 1), "gate"),
    (schedulers.WiderGate, world(2, 1, unchecked=frozenset({"gate"})), "waste"),
    (schedulers.OlderAllowed, world(1, 1, stale_policy="drop"), "age"),
    (schedulers.OlderAllowed, world(1, 0, surplus=1), "late"),
    (schedulers.OlderAllowed, world(1, 0, surplus=1, unchecked=frozenset({"late"})), "age"),
    (schedulers.ReadsTheBus, world(1, 1), "gate"),
    (schedulers.ReadsTheBusBlindly, world(1, 0, unchecked=frozenset({"gate", "late"})), "age"),
    (schedulers.ReadsTheBusBlindly, world(2, 1, unchecked=frozenset({"gate", "late"})), "age"),
    (schedulers.ReadsTheBusBlindly, world(1, 2, 4, unchecked=frozenset({"gate", "late"})), "age"),
    (schedulers.NewestEngine, world(1, 0, engines=2), "late"),
    (schedulers.NewestEngine, world(1, 1, engines=2, unchecked=frozenset({"gate", "late"})), "waste"),
    (schedulers.NoDeadlines, world(2, 1), "waste"),
    (schedulers.LaterDeadlines, world(2, 1), "waste"),
    (schedulers.ReusesIds, world(1, 0), "doubled"),
    (schedulers.ForgetsOpenGroups, world(1, 1, crashes=1), "lost"),
    (schedulers.RestoresAsNew, world(1, 1, 4, crashes=1), "age"),
    (schedulers.KeepsDropped, world(1, 0, drops=1), "doubled"),
    (schedulers.ClosesEarly, world(1, 1), "lost"),
    (schedulers.WaitsForTheLost, world(1, 0, engines=2, departures=1), "stuck"),
    (schedulers.AdmitsLate, world(1, 0, surplus=1), "late"),
    (schedulers.AdmitsAfterTheEnd, world(1, 1, surplus=1, unchecked=frozenset({"late"})), "endless"),
    (schedulers.StopsShort, world(1, 0), "stuck"),
    (schedulers.Overtakes, world(1, 1, deterministic=True), "order"),
    (schedulers.KeepsSurplus, world(1, 1, surplus=1), "stuck"),
]


@pytest.mark.parametrize(
    ("mistake", "small", "rule"), MISTAKES, ids=[f"{m.__name__}-{rule}-{n}" for n, (m, _, rule) in enumerate(MISTAKES)]
)
def test_a_planted_mistake_is_found(mistake: type[Scheduler], small: SmallWorld, rule: str):
    assert explore(small).violation is None
    found = explore(replace(small, scheduler=mistake))
    print(f"{mistake.__doc__}\n{found}")
    assert found.violation is not None and found.violation.rule == rule, found
    assert found.trace and rule in RULES
