# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From numbers of the stream, or of an evaluation set, to samples with their loss weights. Runs in workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax.algorithms.supervised.options import SupervisedOptions
from relax.algorithms.supervised.sequences import supervised_reduction
from relax.components.sft_messages import Unit
from relax.components.sft_order import RowOrder
from relax.components.sft_rows import unit_digest
from relax.components.sft_samples import samples_of
from relax.data.columns import TrainSequence
from relax.engine.sft.dataset.examples import ExampleSource, Refused

EVAL_GROUPS = 1 << 48  # groups of evaluation rows never meet those of training
EVAL_STRIDE = 1 << 32  # of one evaluation set


@dataclass(frozen=True)
class Rendered:
    """One row: a unit with its samples, or why it is left out."""

    unit: Unit | None
    samples: tuple[TrainSequence, ...] = ()
    skipped: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class EvalRows:
    """An evaluation set: rows of some examples."""

    name: str
    examples: ExampleSource
    rows: Sequence[int]


class SftRenderer:
    """Renders rows. One in each worker process; threads share one."""

    def __init__(
        self,
        examples: ExampleSource,
        order: RowOrder,
        evals: Sequence[EvalRows],
        options: SupervisedOptions,
        *,
        reduction: str,
    ) -> None:
        self.examples, self.order, self.evals = examples, order, {found.name: found for found in evals}
        self._options, self._reduction = options, reduction

    def train(self, positions: Sequence[int]) -> list[Rendered]:
        """The rows at these positions of the stream."""
        return [self._one(self.examples, self.order.row(p), p, self._reduction) for p in positions]

    def evaluation(self, name: str, places: Sequence[int]) -> list[Rendered]:
        """Rows of an evaluation set by their place in it; they weigh tokens alike, so that sums are over tokens."""
        found = self.evals[name]
        first = EVAL_GROUPS + list(self.evals).index(name) * EVAL_STRIDE
        return [self._one(found.examples, int(found.rows[p]), first + p, "token_mean") for p in places]

    def places(self, groups: Sequence[int]) -> dict[str, list[int]]:
        """Where evaluation groups come from: {set: places in it}."""
        names = list(self.evals)
        found: dict[str, list[int]] = {}
        for group in groups:
            number, place = divmod(group - EVAL_GROUPS, EVAL_STRIDE)
            found.setdefault(names[number], []).append(place)
        return found

    def _one(self, examples: ExampleSource, row: int, group: int, reduction: str) -> Rendered:
        started = time.perf_counter()
        example = examples.example(row)
        if isinstance(example, Refused):
            return Rendered(None, skipped=example.reason)
        samples = samples_of(example, group, self._options)
        weighed = supervised_reduction(samples, self._options, mode=reduction)
        for sample, weight in zip(samples, weighed.weights, strict=True):
            sample.columns["loss_weight"] = weight
        unit = Unit(
            group=group,
            lengths=tuple(len(sample.tokens) for sample in samples),
            counted=float(weighed.counted),
            tokens=weighed.num_tokens,
            digest=unit_digest(samples),
        )
        return Rendered(unit, tuple(samples), seconds=time.perf_counter() - started)


def skip_counts(rendered: Sequence[Rendered]) -> Mapping[str, int]:
    """How many rows were left out, by reason."""
    counts: dict[str, int] = {}
    for one in rendered:
        if one.skipped is not None:
            counts[one.skipped] = counts.get(one.skipped, 0) + 1
    return counts
