# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Planted delays and deaths at named points, for tests of determinism and recovery. Inert unless RELAX_FAULTS is set.

RELAX_FAULTS is JSON, and every process of a run (driver, workers, doors, engines) inherits it:

    {"seed": 7, "folder": "/dir", "rules": [{"point": "reward", "sleep_s": 0.2, "chance": 0.5},
                                            {"point": "save", "nth": 2, "kill": true}]}

    point    one of POINTS
    sleep_s  sleep a random time below this many seconds, drawn from (seed, point, process, number of the reach)
    hold_s   sleep exactly this long
    chance   share of the reaches that sleep (default 1)
    nth      only the nth reach of a process counts, the first being 1 (default: every one)
    kill     SIGKILL the process, after the sleep

A rule with `nth` fires once for each process, or, with `folder`, once for all processes and all restarts: the first to
get there writes `{folder}/{number of the rule}.json` = {"point", "pid"} before it sleeps or dies. So a rule with
`hold_s` and without `kill` tells a watcher the moment at which to kill another process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relax.utils.errors import ConfigError

VARIABLE = "RELAX_FAULTS"

POINTS: Mapping[str, str] = {
    "admit": "driver: groups are admitted in the journal, the rollout role has not been told",
    "reward": "rollout worker: a group is generated, its scoring has not begun",
    "put": "rollout or sft worker: a rollout is bound (a step drawn), its rows are not on the bus",
    "publish": "training worker: a rollout is trained, its weights are not published",
    "decode_step": "engine process: before a step of the native engine",
    "save": "training worker: its part of a checkpoint is written",
    "checkpoint": "driver: the model's part of a checkpoint is written, the rest and the tracker are not",
    "sync": "rollout worker: an engine is paused, its weight update has not begun",
    "update_begin": "engine process: a weight update has begun, no weights have come",
    "update_end": "engine process: the new weights are staged, the switch has not happened",
}


@dataclass(frozen=True)
class Rule:
    point: str
    sleep_s: float = 0.0
    hold_s: float = 0.0
    chance: float = 1.0
    nth: int | None = None
    kill: bool = False


@dataclass
class FaultPlan:
    """What one process does at the points that it reaches. Points are counted for each process."""

    rules: tuple[Rule, ...]
    seed: int = 0
    folder: Path | None = None
    process: str = field(default_factory=lambda: str(os.getpid()))
    reached: Counter[str] = field(default_factory=Counter)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Raises ConfigError for anything that is not understood: a fault that never comes would prove nothing."""
        try:
            data = json.loads(text)
            rules = tuple(Rule(**rule) for rule in data.pop("rules"))
            plan = cls(rules, int(data.pop("seed", 0)), Path(folder) if (folder := data.pop("folder", None)) else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{VARIABLE}={text!r}: {type(error).__name__}: {error}; see relax/utils/faults.py"
            ) from error
        unknown = sorted({rule.point for rule in rules} - set(POINTS)) + sorted(data)
        if unknown:
            raise ConfigError(f"{VARIABLE}: {', '.join(unknown)}: unknown; points are {', '.join(POINTS)}")
        return plan

    def due(self, point: str) -> tuple[float, bool]:
        """Count one reach of `point` -> (seconds to sleep, whether to die after that)."""
        self.reached[point] += 1
        count, seconds, dies = self.reached[point], 0.0, False
        for number, rule in enumerate(self.rules):
            if rule.point != point or rule.nth not in (None, count):
                continue
            if rule.nth is not None and not self._first(number, rule):
                continue
            if rule.chance < 1 and self._noise(number, "chance", count) >= rule.chance:
                continue
            seconds += rule.hold_s + rule.sleep_s * self._noise(number, "sleep", count)
            dies |= rule.kill
        return seconds, dies

    def _first(self, number: int, rule: Rule) -> bool:
        """Whether no process has fired the rule before."""
        if self.folder is None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".{number}.{os.getpid()}"
        aside.write_text(json.dumps({"point": rule.point, "pid": os.getpid()}))
        try:
            os.link(aside, self.folder / f"{number}.json")  # whole, or not there at all
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        return True

    def _noise(self, *key: object) -> float:
        """A number in [0, 1) of the seed, the process and the key."""
        text = ":".join(map(str, (self.seed, self.process, *key)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little") / 2.0**48


def _from_environment() -> FaultPlan | None:
    text = os.environ.get(VARIABLE)
    return FaultPlan.parse(text) if text else None


_plan: FaultPlan | None = _from_environment()


def plant(plan: FaultPlan | None) -> FaultPlan | None:
    """Replace this process's plan and return the one before: for runs that share a process with their test."""
    global _plan
    before, _plan = _plan, plan
    return before


def reach(point: str) -> None:
    """Tell that a thread is at `point`; it sleeps or dies here when that is planned."""
    if _plan is None:
        return
    seconds, dies = _plan.due(point)
    if seconds:
        time.sleep(seconds)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


async def pause_at(point: str) -> None:
    """`reach` on an event loop: others go on while this task sleeps, on virtual time too."""
    if _plan is None:
        return
    seconds, dies = _plan.due(point)
    if seconds:
        await asyncio.sleep(seconds)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


def notes() -> tuple[str, ...]:
    """What the driver tells its user before it starts."""
    if _plan is None:
        return ()
    points = ", ".join(sorted({rule.point for rule in _plan.rules}))
    return (f"{VARIABLE} plants faults at {points}: a test, not a run to keep",)
