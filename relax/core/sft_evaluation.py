# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""An evaluation of supervised fine-tuning: the loss over held-out rows, micro-batch after micro-batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relax.components.sft_messages import Measure, Measured, Ranks, Rows, SftRoles, Unit, eval_partition

Plan = Callable[[Sequence[Unit]], Ranks]


@dataclass
class Evaluation:
    """Runs one. The producer writes a micro-batch while the actor is at the one before."""

    roles: SftRoles
    plan: Plan

    async def run(self, trained: int) -> dict[str, float]:
        """{metric: value} under weights that contain `trained` steps."""
        sets = await self.roles.producers[0].eval_units()
        plans = [self.plan(found.units) for found in sets]
        number = sum(len(ranks[0]) for ranks in plans)
        metrics: dict[str, float] = {}
        first = 0
        for found, ranks in zip(sets, plans, strict=True):
            tasks = [
                Measure(eval_partition(trained, number, first + place), tuple((micros[place],) for micros in ranks))
                for place in range(len(ranks[0]))
            ]
            first += len(tasks)
            measured = await self._measure(tasks)
            sums, counts = joined(measured)
            for name, value in (await self.roles.actor.summary(sums, counts)).items():
                metrics[f"eval/{found.dataset}/{name}"] = value
            metrics[f"eval/{found.dataset}/rows"] = float(len(found.units))
            metrics[f"eval/{found.dataset}/skipped_rows"] = float(sum(found.skipped.values()))
        return metrics

    async def _measure(self, tasks: Sequence[Measure]) -> list[Measured]:
        measured = []
        writing = asyncio.create_task(self._write(tasks[0]))
        try:
            for place, task in enumerate(tasks):
                await writing
                if place + 1 < len(tasks):
                    writing = asyncio.create_task(self._write(tasks[place + 1]))
                measured.append(await self.roles.actor.measure(task))
                await self.roles.producers[0].drop(task.partition)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        return measured

    async def _write(self, task: Measure) -> None:
        shares = tuple((rank, uids) for rank, (uids,) in enumerate(task.ranks))
        await self.roles.producers[0].write_eval(Rows(task.partition, shares))


def joined(measured: Sequence[Measured]) -> tuple[dict[str, float], dict[str, float]]:
    """Sums and counts over all micro-batches, each rounded once."""
    names = {name for one in measured for name in one.sums}
    sums = {name: math.fsum(one.sums.get(name, 0.0) for one in measured) for name in sorted(names)}
    counts = {name: math.fsum(one.counts.get(name, 0.0) for one in measured) for name in sorted(names)}
    return sums, counts
