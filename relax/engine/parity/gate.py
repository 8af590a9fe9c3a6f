# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""When engine and trainer are compared, which weights are kept for it, and what a difference leads to.

The first rollout that a process trains is compared before its first update, then every `interval`-th rollout. The
tokens of rollout r were sampled under versions r - max_staleness .. r, so copies of those versions (and of the one
before them, which an engine that missed an update still has) are kept from their publication until rollout r has been
compared: in CPU memory, max_staleness + 1 copies for max_staleness + 1 rollouts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from relax.backends.base import Part, TrainBackend
from relax.engine.parity.difference import Difference, compare, first_micro_batches, total_difference
from relax.utils.errors import ConfigError, Divergence

logger = logging.getLogger(__name__)

PROBE_TOKENS = 8192  # over all ranks, of one comparison


@dataclass(frozen=True)
class ParitySettings:
    """`limit` is the largest mean difference in nats. Rounding to bf16 stays well below the default; another
    temperature or raw log-probs of a truncated distribution do not."""

    interval: int | None = None  # rollouts between two comparisons; None: only before the first update
    limit: float = 0.1
    policy: Literal["warn", "fail"] = "warn"  # above the limit, after the first update
    max_staleness: int = 0


class ParityGate:
    """Of one training rank. Calls are collective, blocking and in the order of the actor's own."""

    def __init__(self, settings: ParitySettings) -> None:
        self._settings = settings
        self._kept: dict[int, str] = {}
        self._compared_before = False

    def due(self, rollout_id: int) -> bool:
        if not self._compared_before:
            return True
        interval = self._settings.interval
        return interval is not None and rollout_id % interval == 0

    def published(self, backend: TrainBackend, version: int) -> None:
        """The trainer's weights are now `version`: keep them when a later comparison needs them."""
        interval, age = self._settings.interval, self._settings.max_staleness + 1
        if interval is not None and (version + age) // interval * interval > version:
            backend.keep(_tag(version))
            self._kept[version] = _tag(version)

    def check(self, backend: TrainBackend, part: Part, rollout_id: int) -> Difference:
        """Compare a rollout before its training; raises by policy when the engines differ."""
        first, self._compared_before = not self._compared_before, True
        probe = first_micro_batches(backend, part, PROBE_TOKENS)
        compared = compare(backend, probe, {**self._kept, rollout_id: "actor"})
        difference = total_difference(backend, compared)
        self._forget(backend, rollout_id)
        if difference.mean > self._settings.limit:
            self._tell(difference, first=first)
        return difference

    def _forget(self, backend: TrainBackend, rollout_id: int) -> None:
        """Free what no later comparison needs."""
        interval = self._settings.interval or 1
        due = (rollout_id // interval + 1) * interval
        for version in [v for v in self._kept if v < due - self._settings.max_staleness - 1]:
            backend.forget(self._kept.pop(version))

    def _tell(self, difference: Difference, *, first: bool) -> None:
        text = (
            f"engine and trainer disagree{' before the first update' if first else ''}: |engine - trainer| log-prob "
            f"is {difference.mean:.3f} nats on average and {difference.max:.3f} at most over {difference.count} "
            f"tokens (at most {self._settings.limit:g} on average is allowed by --parity-limit)"
        )
        if first:
            raise ConfigError(
                f"{text}. They see different models, temperatures, media or tokens, or the engine reports log-probs "
                "before temperature and truncation: training on them would be wrong in silence"
            )
        if self._settings.policy == "fail":
            raise Divergence(f"{text}; --parity-policy fail ends the run")
        logger.warning("%s", text)


def _tag(version: int) -> str:
    return f"version-{version}"
