# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The sequences that differ most, scored again with one thing switched.

Collective: every rank brings as many micro-batches as the rank with the most suspects, and all get the same means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from relax.backends.base import Part, ScoreSwitch, TrainBackend
from relax.data.columns import TrainSequence
from relax.engine.parity.difference import Compared, Uid, compare

MAX_SUSPECTS = 8  # of one rank
Change = Callable[[TrainSequence], TrainSequence | None]


class Suspects:
    """See the module. `compared` is this rank's share of the probe; `tags` gives the weights of each version."""

    def __init__(self, backend: TrainBackend, compared: Sequence[Compared], tags: Mapping[int, str]) -> None:
        self.backend, self.tags, self.compared = backend, dict(tags), compared
        worst = sorted((c for c in compared if c.sizes.size), key=lambda c: (-c.mean, c.sequence.uid))
        self.worst = worst[:MAX_SUSPECTS]
        self.before = self._mean([c.sizes for c in self.worst])

    def sequences(self) -> list[TrainSequence]:
        return [c.sequence for c in self.worst]

    def mean_with(
        self,
        change: Change | None = None,
        *,
        switch: ScoreSwitch | None = None,
        tags: Mapping[int, str] | None = None,
    ) -> float | None:
        """Mean |difference| of the suspects after a switch; None when the backend does not have it.

        A suspect that `change` cannot be applied to (None) keeps the difference that it has.
        """
        changed = [None if change is None else change(s) for s in self.sequences()]
        rows = [s if c is None else c for s, c in zip(self.sequences(), changed, strict=True)]
        found = self.score(rows, switch=switch, tags=tags)
        if found is None:
            return None
        untouched = change is not None
        return self._mean(
            [
                c.sizes if untouched and new is None else found[c.sequence.uid].sizes
                for c, new in zip(self.worst, changed, strict=True)
            ]
        )

    def mean_with_best(self, changes: Mapping[Uid, Sequence[TrainSequence]]) -> float | None:
        """The mean when each suspect takes the one of its own changes that fits it best; None without any."""
        best = {c.sequence.uid: c.sizes for c in self.worst}
        rounds = self.most(max(map(len, changes.values()), default=0))
        for number in range(rounds):
            found = self.score([rows[number] for rows in changes.values() if number < len(rows)]) or {}
            for uid, compared in found.items():
                if compared.mean < best[uid].mean():
                    best[uid] = compared.sizes
        return self._mean(list(best.values())) if rounds else None

    def score(
        self,
        rows: Sequence[TrainSequence],
        *,
        switch: ScoreSwitch | None = None,
        tags: Mapping[int, str] | None = None,
    ) -> dict[Uid, Compared] | None:
        """Compare other rows, each in a micro-batch of its own; None when the backend has no such switch."""
        number = max(self.backend.gather(len(rows)))
        micro_batches = [(row,) for row in rows] + [()] * (number - len(rows))
        try:
            found = compare(self.backend, Part(tuple(micro_batches)), self.tags if tags is None else tags, switch)
        except NotImplementedError:  # known before any rank computes: all ranks leave the trial out
            return None
        return {c.sequence.uid: c for c in found}

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers: how many rounds all take part in."""
        return max(self.backend.gather(number))

    def _mean(self, sizes: Sequence[np.ndarray]) -> float:
        here = (float(sum(s.sum() for s in sizes)), sum(s.size for s in sizes))
        totals = self.backend.gather(here)
        count = sum(n for _, n in totals)
        return sum(t for t, _ in totals) / count if count else 0.0


def with_prompt(sequence: TrainSequence, prompt: np.ndarray) -> TrainSequence:
    """The same response behind another prompt."""
    tokens = np.concatenate([np.asarray(prompt, np.int32), sequence.tokens[sequence.prompt_len :]])
    return replace(sequence, tokens=tokens.astype(np.int32), prompt_len=len(prompt))
