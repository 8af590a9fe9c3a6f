# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Lines of runs: one run folder, killed and resumed until it is finished, then counted."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kills.evidence import count, expected, make_inputs, weight_hash
from benchmarks.kills.runs import GROUPS, MODES, ROLLOUTS, SAMPLES, Clustered, Followed, Forked, Mode, flags, follow
from relax.core.checkpoint import iteration_folder

POINTS = {  # named phase -> the latest of its reaches in a whole run that is tried
    "admit": 8,
    "reward": 12,
    "put": 8,
    "decode_step": 60,
    "publish": 8,
    "save": 8,
    "checkpoint": 8,
    "sync": 8,
    "update_begin": 8,
    "update_end": 8,
}
RANDOM = "random"
ORPHANS_S = 30.0  # after the death of a driver its processes are gone


@dataclass(frozen=True)
class Kill:
    """What dies and when: at the nth reach of a named phase, or at a random moment.

    `victim` "everything" is a run in one process; else the process of a run on Ray: driver, actor-0, rollout,
    engine-0-process, bus, coordinator.
    """

    phase: str
    nth: int = 1
    victim: str = "everything"

    def __str__(self) -> str:
        return f"{self.victim} at {self.phase} {self.nth}"


@dataclass
class Tally:
    runs: int = 0  # kills
    lost: int = 0
    doubled: int = 0
    hung: int = 0
    unequal: int = 0  # exact lines whose final weights are not those of the run without a kill
    wrong_ends: list[str] = field(default_factory=list)  # wrong exit code, orphans, a resume that failed
    recoveries: list[float] = field(default_factory=list)

    def result(self, control_lost: int) -> dict[str, Any]:
        median = statistics.median(self.recoveries) if self.recoveries else None
        return {
            "lost": self.lost,
            "doubled": self.doubled,
            "hung": self.hung,
            "control_lost": control_lost,
            "unequal": self.unequal,
            "wrong_ends": len(self.wrong_ends),
            "median_recovery_s": None if median is None else round(median, 2),
            "runs": self.runs,
        }


class Harness:
    """Starts, kills, resumes and counts. Everything lies below `work`."""

    def __init__(self, work: Path, seed: int) -> None:
        self.work, self.rng, self.tally = work, random.Random(seed), Tally()
        shutil.rmtree(work / "lines", ignore_errors=True)
        (work / "lines").mkdir(parents=True)
        self.inputs = make_inputs(work)
        self.wanted = expected(self.inputs, GROUPS)
        self._hashes: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._numbers = iter(range(10**6))
        self._begun: set[Path] = set()  # folders in which an attempt has ended

    # ------------------------------------------------------------------ runs without a kill

    def whole(self, mode: Mode) -> None:
        """The run without a kill: how long it takes, and the weights that every exact line must end with."""
        if mode.name in self._seconds:
            return
        folder, start = self.work / "lines" / f"whole-{mode.name}", time.monotonic()
        followed = self._attempt(folder, mode, None, forget=False)
        if followed.code != 0:
            raise SystemExit(f"the run without a kill ended with {followed.code}: see {folder}.log")
        self._seconds[mode.name] = time.monotonic() - start
        self._hashes[mode.name] = weight_hash(iteration_folder(folder, ROLLOUTS - 1))
        found = count(iteration_folder(folder, ROLLOUTS - 1), self.wanted, SAMPLES)
        if found.lost or found.doubled:
            raise SystemExit(f"the run without a kill has lost {found.lost} and doubled {found.doubled} prompts")

    # ------------------------------------------------------------------ lines

    def line(self, mode: Mode, kills: Sequence[Kill]) -> None:
        """Kill and resume one run by every kill, let it finish, and add it to the tally."""
        if mode.exact:
            self.whole(mode)
        folder = self._new_folder(mode)
        done = False
        for kill in kills:
            done = done or self._killed(folder, mode, kill)
        if not done:
            self._note(folder, "the last resume", self._attempt(folder, mode, None, forget=False), {0})
        self._count(folder, mode)

    def _killed(self, folder: Path, mode: Mode, kill: Kill) -> bool:
        """Whether the run finished before the kill came."""
        if kill.victim == "everything":
            followed = self._attempt(folder, mode, kill, forget=False)
            self._note(folder, str(kill), followed, {0, -9})
        else:
            followed = self._cluster_attempt(folder, mode, kill)
        self.tally.runs += followed.code != 0 or followed.killed
        print(f"{folder.name:<20} {kill!s:<34} -> {followed.code}, trained after {followed.recovered_s}", flush=True)
        return followed.code == 0

    def control_lost(self, mode: Mode, kill: Kill) -> int:
        """Prompts that are lost when a resume forgets which were open. The harness must see them."""
        folder = self._new_folder(mode)
        for forget, when in ((False, kill), (True, None)):
            followed = self._attempt(folder, mode, when, forget=forget)
        self._note(folder, "the control's resume", followed, {0})
        return count(iteration_folder(folder, ROLLOUTS - 1), self.wanted, SAMPLES).lost

    def _new_folder(self, mode: Mode) -> Path:
        return self.work / "lines" / f"{next(self._numbers):03d}-{mode.name}"

    def _attempt(self, folder: Path, mode: Mode, kill: Kill | None, *, forget: bool) -> Followed:
        plan, strike = _plan(kill), None
        words = flags(self.inputs, mode, folder, ray=False)
        attempt = Forked.start(words, folder, plan, forget)
        if kill is not None and plan is None:
            moment = self.rng.uniform(0.0, self._seconds[mode.name])
            strike = lambda seconds, steps: seconds >= moment and (attempt.kill() or True)  # noqa: E731
        try:
            return follow(attempt, strike)
        finally:
            attempt.close()

    def _cluster_attempt(self, folder: Path, mode: Mode, kill: Kill) -> Followed:
        """A run on Ray loses one process; it must end as docs/recovery.md says, and leave none behind."""
        words = flags(self.inputs, mode, folder, ray=True, http=kill.victim == "coordinator")
        plan = _plan(kill, folder)
        attempt = Clustered.start(words, folder, plan)
        steps_before = self.rng.randint(1, 3)

        def strike(seconds: float, steps: int) -> bool:
            if kill.phase != RANDOM or steps < steps_before:
                return False
            if kill.victim == "driver":
                attempt.kill()
                return True
            return attempt.kill_one(kill.victim)

        try:
            followed = follow(attempt, strike)
            allowed = {"driver": {-9}, "coordinator": {0}}.get(kill.victim, {5})
            self._note(folder, str(kill), followed, allowed)
            if followed.code and not (followed.killed if plan is None else list(Path(plan["folder"]).glob("*.json"))):
                self.tally.wrong_ends.append(f"{folder}: ended with {followed.code} before {kill}: see {folder}.log")
            if left := attempt.orphans(ORPHANS_S):
                self.tally.wrong_ends.append(f"{folder}: {kill} left {left}")
            return followed
        finally:
            attempt.close()

    # ------------------------------------------------------------------ the tally

    def _note(self, folder: Path, what: str, followed: Followed, allowed: set[int]) -> None:
        if followed.code is None:
            self.tally.hung += 1
        elif followed.code not in allowed:
            self.tally.wrong_ends.append(f"{folder}: {what} ended with {followed.code}, expected {sorted(allowed)}")
        if followed.recovered_s is not None and folder in self._begun:
            self.tally.recoveries.append(followed.recovered_s)
        self._begun.add(folder)

    def _count(self, folder: Path, mode: Mode) -> None:
        checkpoint = iteration_folder(folder, ROLLOUTS - 1)
        if not (checkpoint / "model").exists():
            self.tally.wrong_ends.append(f"{folder}: the line did not finish")
            return
        found = count(checkpoint, self.wanted, SAMPLES)
        self.tally.lost += found.lost
        self.tally.doubled += found.doubled
        if mode.exact and weight_hash(checkpoint) != self._hashes[mode.name]:
            self.tally.unequal += 1
            self.tally.wrong_ends.append(f"{folder}: other weights than without a kill")


def _plan(kill: Kill | None, folder: Path | None = None) -> dict[str, Any] | None:
    """RELAX_FAULTS of an attempt. On Ray one process dies once, wherever the phase is reached first."""
    if kill is None or kill.phase == RANDOM:
        return None
    plan: dict[str, Any] = {"rules": [{"point": kill.phase, "nth": kill.nth, "kill": True}]}
    return plan if folder is None else plan | {"folder": f"{folder}.faults-{kill.phase}-{kill.nth}-{time.monotonic()}"}


def random_kills(rng: random.Random) -> list[Kill]:
    """One to three kills of a line with all roles in one process: half at named phases, half at random moments."""
    kills = []
    for _ in range(rng.randint(1, 3)):
        phase = rng.choice(sorted(POINTS))
        kills.append(Kill(phase, rng.randint(1, POINTS[phase])) if rng.random() < 0.5 else Kill(RANDOM))
    return kills


CLUSTER_KILLS = (
    Kill("publish", 3, "actor-0"),
    Kill("put", 2, "rollout"),
    Kill("update_begin", 3, "engine-0-process"),
    Kill("checkpoint", 2, "driver"),
    Kill(RANDOM, 1, "bus"),
    Kill(RANDOM, 1, "coordinator"),
    Kill(RANDOM, 1, "actor-0"),
    Kill(RANDOM, 1, "rollout"),
    Kill(RANDOM, 1, "engine-0-process"),
    Kill(RANDOM, 1, "driver"),
)


def passed(result: dict[str, Any]) -> bool:
    return not any(result[name] for name in ("lost", "doubled", "hung", "unequal", "wrong_ends")) and bool(
        result["control_lost"]
    )


def write_result(result: dict[str, Any]) -> str:
    return "RESULT " + json.dumps(result)


__all__ = ["CLUSTER_KILLS", "MODES", "RANDOM", "Harness", "Kill", "passed", "random_kills", "write_result"]
