# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a seed stands for: the size, the settings and the faults of one schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Plan:
    """Everything that makes a schedule."""

    seed: int
    mode: str = "fully_async"
    batch: int = 3
    group_size: int = 2
    rollouts: int = 5
    staleness: int = 1
    interval: int = 1
    surplus: int = 0
    stale_policy: str = "wait"
    num_engines: int = 1
    pause_mode: str = "retract"
    steps_per_rollout: int = 1
    parts: int = 1  # of an optimizer step
    arrival_order: bool = False  # of the parts
    forward: str | None = None  # "reference" or "actor_fwd"
    eval_interval: int | None = None
    save_interval: int | None = None
    slow_requests: float = 0.0  # fractions
    hanging_requests: float = 0.0
    user_failures: float = 0.0
    reward_failures: float = 0.0
    filtered: float = 0.0
    install_failures: float = 0.0  # of the second engine
    fan_out: bool = False
    deterministic: bool = False
    timing: int | None = None  # seed of the latencies alone; None: that of the schedule
    partial_rollout: bool = False
    protected_after: int | None = None  # with partial rollout
    mask_off_policy: bool = False
    pace: float = 1.0  # how much slower tokens come: above 5, updates find groups that run


def plan_of(seed: int) -> Plan:
    """The schedule of a seed: a mixture that reaches every combination sooner or later."""
    rng = random.Random(seed)
    colocate = rng.random() < 0.25
    staleness = 0 if colocate else rng.choice((0, 1, 1, 2))
    batch = rng.choice((1, 2, 3))
    engines = rng.choice((1, 2))
    surplus = rng.choice((0, 0, 0, 2))
    sometimes = lambda value: value if rng.random() < 0.4 else 0.0  # noqa: E731
    plan = Plan(
        seed=seed,
        mode="colocate" if colocate else "fully_async",
        batch=batch,
        group_size=rng.choice((1, 2, 3)),
        rollouts=rng.choice((3, 5)),
        staleness=staleness,
        interval=rng.choice((1, 2)) if staleness else 1,
        surplus=surplus,
        stale_policy=rng.choice(("wait", "drop")),
        num_engines=engines,
        pause_mode=rng.choice(("retract", "in_place", "abort")),
        steps_per_rollout=batch if rng.random() < 0.3 else 1,
        forward=rng.choice((None, None, "reference", "actor_fwd")),
        eval_interval=rng.choice((None, 1, 2)),
        save_interval=rng.choice((None, None, None, 2)),
        slow_requests=sometimes(0.15),
        hanging_requests=sometimes(0.02),
        user_failures=sometimes(0.2),
        reward_failures=sometimes(0.1),
        filtered=sometimes(0.3),
        install_failures=0.4 if engines == 2 and rng.random() < 0.5 else 0.0,
        fan_out=rng.random() < 0.15,
    )
    streams = not colocate and plan.steps_per_rollout == 1 and rng.random() < 0.4
    return replace(plan, parts=batch, arrival_order=batch > 1 and rng.random() < 0.5) if streams else plan


@dataclass(frozen=True)
class Trouble:
    """What else goes wrong in a schedule of the benchmark."""

    kills: tuple[float, ...] = ()  # seconds after the start at which an engine's process dies
    crash_at: tuple[int, ...] = ()  # the n-th call of a role ends the run; each is followed by a resume
    repeats: float = 0.0  # share of reports that arrive twice, and of rows that are put twice
    stale_puts: float = 0.0  # share of rows that an old writer puts again with other contents
    reorders: float = 0.0  # share of puts and gets whose rows come in another order, in pieces


def trouble_of(seed: int) -> tuple[Plan, Trouble]:
    """A seed's schedule with the faults of processes and transport besides those of `plan_of`."""
    plan, rng = plan_of(seed), random.Random(f"trouble {seed}")
    crash_at: tuple[int, ...] = ()
    kills: tuple[float, ...] = ()
    if rng.random() < 0.35:
        plan = replace(plan, save_interval=rng.choice((1, 2)))
        crash_at = tuple(rng.randrange(4, 140) for _ in range(rng.choice((1, 1, 2))))
    elif rng.random() < 0.35 and plan.mode == "fully_async":
        kills = tuple(sorted(80.0 * rng.random() for _ in range(rng.choice((1, 2, 3)))))
    if rng.random() < 0.5:
        plan = replace(plan, pace=8.0, slow_requests=0.0)
    share = lambda: rng.choice((0.0, 0.3, 0.6))  # noqa: E731
    return plan, Trouble(kills, crash_at, share(), share(), share())
