# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Breadth-first over every interleaving of a small world, so the first broken rule comes with a shortest trace."""

from __future__ import annotations

import hashlib
import marshal
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.simulation.small_world import SmallWorld, State, Violation, first_state, has_ended, key, moves

Identify = Callable[[SmallWorld, State], tuple[Any, ...]]


@dataclass(frozen=True)
class Exploration:
    """`trace` leads from the start to the violation; without one, every reachable situation was visited."""

    states: int
    moves: int
    ends: int  # situations in which the run has ended
    violation: Violation | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.states} states, {self.moves} moves, {self.ends} ends"
        lines = [f"{place:4d}  {text}" for place, text in enumerate(self.trace, start=1)]
        return "\n".join([str(self.violation), *lines])


class _Graph:
    """Visited situations by a digest of their key, each with the move that first reached it."""

    def __init__(self, identify: Callable[[State], tuple[Any, ...]]) -> None:
        self._identify = identify
        self._numbers: dict[bytes, int] = {}
        self._parents = array("i")
        self._texts: list[str] = []

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, state: State, parent: int, text: str) -> tuple[int, bool]:
        """(number, whether it is new)."""
        packed = marshal.dumps(self._identify(state), 2)  # version 2 knows no references: equal keys, equal bytes
        digest = hashlib.blake2b(packed, digest_size=12).digest()
        number = self._numbers.setdefault(digest, len(self._texts))
        if number < len(self._texts):
            return number, False
        self._parents.append(parent)
        self._texts.append(text)
        return number, True

    def trace(self, number: int) -> tuple[str, ...]:
        texts = []
        while number > 0:
            texts.append(self._texts[number])
            number = self._parents[number]
        return tuple(reversed(texts))


def explore(world: SmallWorld, *, most_states: int = 5_000_000, identify: Identify = key) -> Exploration:
    """Visit everything, or stop at the first violation. Raises RuntimeError beyond `most_states`.

    `identify` gives equal values for situations that are taken as one.
    """
    graph, start = _Graph(lambda state: identify(world, state)), first_state(world)
    graph.add(start, -1, "")
    waiting = deque([(0, start)])
    sources, targets = array("i"), array("i")  # of moves that are no faults
    num_moves = ends = 0
    while waiting:
        number, state = waiting.popleft()
        if has_ended(world, state):
            ends += 1
            continue
        going_on = False
        try:
            for move in moves(world, state):
                target, new = graph.add(move.state, number, move.text)
                num_moves += 1
                if new:
                    waiting.append((target, move.state))
                if not move.fault:
                    going_on = True
                    sources.append(number)
                    targets.append(target)
            if not going_on:
                raise Violation("stuck", f"nothing can happen: {situation(state)}")
        except Violation as violation:
            return Exploration(len(graph), num_moves, ends, violation, graph.trace(number))
        if len(graph) > most_states:
            raise RuntimeError(f"{world} has more than {most_states} states")
    circle = _on_a_circle(len(graph), sources, targets)
    if circle is not None:
        violation = Violation("endless", "a situation comes back without a fault in between")
        return Exploration(len(graph), num_moves, ends, violation, graph.trace(circle))
    return Exploration(len(graph), num_moves, ends)


def _on_a_circle(count: int, sources: array[int], targets: array[int]) -> int | None:
    """A node that no topological order reaches, or None: then every walk is finite."""
    incoming = array("i", bytes(4 * count))
    following: list[list[int]] = [[] for _ in range(count)]
    for source, target in zip(sources, targets, strict=True):
        incoming[target] += 1
        following[source].append(target)
    ready = [number for number in range(count) if not incoming[number]]
    left = count
    while ready:
        left -= 1
        for target in following[ready.pop()]:
            incoming[target] -= 1
            if not incoming[target]:
                ready.append(target)
    return next((number for number in range(count) if incoming[number]), None) if left else None


def situation(state: State) -> str:
    scheduler = state.scheduler
    groups = ", ".join(f"{g.group} {g.state.value} at {g.version}" for g in scheduler.open.values())
    return (
        f"{scheduler.stepped} rollouts trained, {scheduler.next_rollout} bound, published {scheduler.published}, "
        f"engines {scheduler.engines}, groups [{groups}]"
    )
