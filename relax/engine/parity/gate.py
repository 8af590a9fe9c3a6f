# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""When engine and trainer are compared, which weights are kept for it, and what a difference leads to.

The first rollout that a process trains is compared before its first update, then every `interval`-th rollout. The
tokens of rollout r were sampled under versions r - max_staleness .. r, so copies of those versions (and of the one
before them, which an engine that missed an update still has) are kept from their publication until rollout r has been
compared: in CPU memory, max_staleness + 1 copies for max_staleness + 1 rollouts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from relax.backends.base import Part, TrainBackend
from relax.engine.parity.diagnose import Facts, diagnose, impossible_ids, sampled_suppressed, truncated_in_silence
from relax.engine.parity.difference import MOST_NATS, Difference, compare, first_micro_batches, total_difference
from relax.engine.parity.verdict import Verdict
from relax.utils.errors import ConfigError, Divergence

logger = logging.getLogger(__name__)

PROBE_TOKENS = 8192  # over all ranks, of one comparison
EXACT_LIMIT = 1e-3  # nats; engine and trainer that compute the same bits differ by nothing, so this is no rounding
INITIAL = "initial"  # the weights of the model's folder, kept by a run that goes on from a checkpoint


@dataclass(frozen=True)
class ParitySettings:
    """`limit` is the largest mean difference in nats. Rounding to bf16 stays well below the default; another
    temperature or raw log-probs of a truncated distribution do not."""

    interval: int | None = None  # rollouts between two comparisons; None: only before the first update
    limit: float = 0.1
    policy: Literal["warn", "fail"] = "warn"  # above the limit, after the first update
    max_staleness: int = 0
    same_forward: bool = False  # the engines run the trainer's own forward, in its type


class Parity(NamedTuple):
    """What one comparison found; `verdict` None where nothing is wrong."""

    difference: Difference
    verdict: Verdict | None = None


class ParityGate:
    """Of one training rank. Calls are collective, blocking and in the order of the actor's own.

    `facts` is asked when a cause is sought.
    """

    def __init__(self, settings: ParitySettings, facts: Callable[[], Facts] = Facts) -> None:
        self._settings, self._facts = settings, facts
        self._kept: dict[int, str] = {}
        self._others: dict[str, str] = {}
        self._begun = False  # a rollout has been trained
        self._compared = False  # at least one token has been compared

    def due(self, rollout_id: int) -> bool:
        if not self._compared:
            return True
        interval = self._settings.interval
        return interval is not None and rollout_id % interval == 0

    def replacing_initial(self, backend: TrainBackend) -> None:
        """A checkpoint is about to be loaded over the weights that the engines started with."""
        if not self._begun:
            backend.keep(INITIAL)
            self._others = {"the weights of the model's folder": INITIAL}

    def published(self, backend: TrainBackend, version: int) -> None:
        """The trainer's weights are now `version`: keep them when a later comparison needs them."""
        interval, age = self._settings.interval, self._settings.max_staleness + 1
        wanted = interval is not None and (version + age) // interval * interval > version
        # the first rollouts of a resumed run hold tokens of versions that an earlier process published
        resumed = not self._compared and version > 0 and self._settings.max_staleness > 0
        if wanted or resumed:
            backend.keep(_tag(version))
            self._kept[version] = _tag(version)

    def check(self, backend: TrainBackend, part: Part, rollout_id: int, *, exact: bool = False) -> Difference:
        """Compare a rollout before its training; raises by policy when the engines differ.

        `exact`: the trainer computes the same bits however its batches are cut.
        """
        first, self._begun = not self._begun, True
        found = self.examine(backend, part, rollout_id, exact=exact)
        self._compared |= found.difference.count > 0
        self._forget(backend, rollout_id)
        if found.verdict is not None:
            self._tell(found.difference, found.verdict, first=first)
        return found.difference

    def examine(self, backend: TrainBackend, part: Part, rollout_id: int, *, exact: bool = False) -> Parity:
        """Measure, and seek the cause where the difference is more than rounding."""
        facts = replace(self._facts(), other_tags=self._others)
        probe = first_micro_batches(backend, part, PROBE_TOKENS)
        sequences = [s for micro in probe.micro_batches for s in micro]
        impossible, sampled = np.sum(backend.gather(sampled_suppressed(sequences, facts)), axis=0).tolist()
        if impossible:
            share = impossible / sampled
            return Parity(
                Difference(MOST_NATS * share, MOST_NATS if share > 0.01 else 0.0, MOST_NATS, sampled),
                impossible_ids(impossible, sampled),
            )
        tags = {**self._kept, rollout_id: "actor"}
        compared = compare(backend, probe, tags)
        difference = total_difference(backend, compared)
        limit = self._settings.limit
        if exact and self._settings.same_forward:
            limit = min(limit, EXACT_LIMIT)
        if difference.mean > limit:
            if facts.open_vocabulary is not None:
                facts = replace(facts, vocabulary=facts.open_vocabulary())
            return Parity(difference, diagnose(backend, compared, tags, facts, tolerance=limit))
        return Parity(difference, truncated_in_silence(backend, compared))

    def _forget(self, backend: TrainBackend, rollout_id: int) -> None:
        """Free what no later comparison needs."""
        if self._others:
            backend.forget(INITIAL)
            self._others = {}
        interval = self._settings.interval
        due = rollout_id + 1  # the next comparison
        if interval is not None and self._compared:
            due = (rollout_id // interval + 1) * interval
        done = interval is None and self._compared
        for version in [v for v in self._kept if done or v < due - self._settings.max_staleness - 1]:
            backend.forget(self._kept.pop(version))

    def _tell(self, difference: Difference, verdict: Verdict, *, first: bool) -> None:
        text = (
            f"engine and trainer disagree{' before the first update' if first else ''}: |engine - trainer| log-prob "
            f"is {difference.mean:.3g} nats on average and {difference.max:.3g} at most over {difference.count} "
            f"tokens (at most {self._settings.limit:g} on average is allowed by --parity-limit); {verdict}"
        )
        if difference.mean > self._settings.limit:
            if first:
                raise ConfigError(f"{text}. Training on them would be wrong in silence")
            if self._settings.policy == "fail":
                raise Divergence(f"{text}. --parity-policy fail ends the run")
        logger.warning("%s", text)


def _tag(version: int) -> str:
    return f"version-{version}"
