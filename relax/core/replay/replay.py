# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax replay`: steps of a run computed again from its folder, and compared with what the run recorded.

    trace     bytes of every group          against the journal's digests and checksums; damage ends the replay
    digest    groups of the step            against the chained digest of `stepped`
    rewards   the run's reward functions    against the trace, bit for bit
    columns   advantages, weights, scores   against the checksums of what the trainer was given
    loss      every additive term           against the journal, bit for bit
    gradient  the norm of each tensor       against the journal, bit for bit
    weights   every tensor of a version     against the checksums of the published version
    regenerated  ids and log-probs          against the trace, where the engine is exact and it was asked for

Training starts at the newest weights that are left, at or before the first step that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relax.core.replay.compare import (
    Check,
    Difference,
    StepOutcome,
    compare_columns,
    compare_critic,
    compare_updates,
    compare_weights,
)
from relax.core.replay.prompts import Prompts
from relax.core.replay.record import RunRecord, Start, StepRecord
from relax.core.replay.regenerate import Regenerator, why_not_regenerated
from relax.core.replay.rerun import Rerun, checksums_of, why_inexact
from relax.core.replay.rewards import compare_rewards
from relax.core.run_folder import new_run_id
from relax.core.training_loop import chain_digest
from relax.distributed.bus.base import Block
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.trace import Damage
from relax.utils.owned_folder import owned_folder

NOT_RECORDED = "the run did not record it"
OnStep = Callable[[StepOutcome], None]


@dataclass
class ReplayResult:
    """What was compared. `steps` were asked for; outcomes hold those that had to be trained before them, too."""

    steps: tuple[int, ...]
    start: Start
    inexact: str  # why bits need not agree, "" when they must
    outcomes: list[StepOutcome] = field(default_factory=list)

    @property
    def first(self) -> Difference | None:
        return next((outcome.first for outcome in self.outcomes if outcome.first), None)

    @property
    def compared(self) -> int:
        return sum(check.compared for outcome in self.outcomes for check in outcome.checks)

    @property
    def skipped(self) -> dict[str, str]:
        """{kind of field: why}"""
        return {c.name: c.skipped for outcome in self.outcomes for c in outcome.checks if c.skipped}

    def to_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "identical": False if first else None if self.inexact else True,
            "steps": list(self.steps),
            "from_version": self.start.version,
            "compared": self.compared,
            "differences": sum(len(c.differences) for o in self.outcomes for c in o.checks),
            "first": first.to_json() if first else None,
            "skipped": self.skipped,
            "inexact": self.inexact,
        }


async def replay(
    record: RunRecord,
    steps: Sequence[int],
    *,
    with_rewards: bool = True,
    regenerate: bool = False,
    on_step: OnStep = lambda outcome: None,
) -> ReplayResult:
    """Compute `steps` (ascending) again. Differences are part of the result, never raised."""
    inexact = why_inexact(record)
    damaged = _damaged(record, [record.step(number) for number in steps])
    prompts = Prompts(record)
    regenerator, version = None, steps[0]
    if regenerate and not damaged and not why_not_regenerated(record, inexact):
        blocks = {number: {g: record.block(g) for g in record.step(number).groups} for number in steps}
        regenerator = Regenerator(record, blocks, prompts)
        version = min(version, steps[0] if regenerator.first_version is None else regenerator.first_version)
    start = record.start_for(version)
    result = ReplayResult(tuple(steps), start, inexact, damaged)
    chain = [record.step(number) for number in range(start.version, steps[-1] + 1)]
    result.outcomes = damaged or _damaged(record, chain)  # bytes that have changed need no computation
    for outcome in result.outcomes:
        on_step(outcome)
    if result.outcomes:
        return result
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else record.folder.root
    with owned_folder(parent / f"relax-replay-{new_run_id()}") as shared_dir:
        run = _Replaying(record, result, Rerun(record, shared_dir), prompts, regenerator)
        try:
            opened = await run.open()
            for step in chain:
                again = step.rollout_id in steps
                outcome = await run.step(step, with_rewards=with_rewards and again)
                if step is chain[0]:
                    outcome.checks.insert(0, opened)
                if again and regenerate:
                    outcome.checks.append(run.regenerated(step.rollout_id))
                result.outcomes.append(outcome)
                on_step(outcome)
        finally:
            await run.close()
    return result


def _damaged(record: RunRecord, steps: Sequence[StepRecord]) -> list[StepOutcome]:
    outcomes = [StepOutcome(step.rollout_id, [trace_check(record, step)]) for step in steps]
    return [outcome for outcome in outcomes if outcome.first]


@dataclass
class _Replaying:
    """One replay in progress."""

    record: RunRecord
    result: ReplayResult
    rerun: Rerun
    prompts: Prompts
    regenerator: Regenerator | None

    async def open(self) -> Check:
        manifest = await self.rerun.open(self.result.start)
        if self.regenerator is not None:
            await self.regenerator.start(self.rerun.wiring)
            await self.regenerator.take(manifest)
        check = self._weights(self.result.start.version, manifest)
        check.name = "start"
        return check

    async def step(self, step: StepRecord, *, with_rewards: bool) -> StepOutcome:
        record, inexact = self.record, self.result.inexact
        blocks = {group: record.block(group) for group in step.groups}
        checks = [trace_check(record, step), digest_check(record, step, blocks, self.result.start)]
        if with_rewards:
            checks.append(await compare_rewards(record, step, blocks))
        features, changed = await self.prompts.with_media(step.rollout_id, blocks.values())
        if changed:
            checks.append(Check("prompt", len(blocks), differences=changed))
        advantages, report = await self.rerun.step(step, blocks, features)
        if step.trained is None:
            checks += [Check(name, skipped=NOT_RECORDED) for name in ("columns", "loss", "gradient")]
        else:
            ranks = record.config.resource["actor"].gpus
            checks += compare_columns(step.trained, report.checksums, inexact=inexact)
            checks += compare_updates(step.trained, advantages.divisors, report.steps, inexact=inexact, ranks=ranks)
        if step.critic is not None and (critic := self.rerun.critic_report) is not None:
            checks += compare_critic(
                step.critic, advantages.divisors, critic, inexact=inexact, ranks=record.critic_ranks
            )
        checks.append(await self._publish(step.rollout_id))
        return StepOutcome(step.rollout_id, checks)

    async def _publish(self, rollout_id: int) -> Check:
        version = rollout_id + 1
        if version not in self.record.published:
            return Check("weights", skipped="this version was not published")
        manifest = await self.rerun.publish(version)
        if self.regenerator is not None:
            await self.regenerator.take(manifest)
        return self._weights(rollout_id, manifest)

    def _weights(self, step: int, manifest: WeightManifest) -> Check:
        recorded = self.record.weights.get(manifest.version)
        if recorded is None:
            return Check("weights", skipped=NOT_RECORDED)
        found = checksums_of(manifest)
        return compare_weights(step, manifest.version, recorded, found, inexact=self.result.inexact)

    def regenerated(self, step: int) -> Check:
        if self.regenerator is None:
            return Check("regenerated", skipped=why_not_regenerated(self.record, self.result.inexact))
        return self.regenerator.checks[step]

    async def close(self) -> None:
        self.prompts.close()
        if self.regenerator is not None:
            await self.regenerator.close()
        await self.rerun.close()


# ---------------------------------------------------------------------- the trace


def trace_check(record: RunRecord, step: StepRecord) -> Check:
    """The bytes of every group of a step."""
    check = Check("trace")
    for group in step.groups:
        check.compared += 1
        damage = record.damage(group)
        if damage is not None:
            where = describe_place(record, group, damage)
            check.differences.append(
                Difference(step.rollout_id, f"trace {damage.field}", where, damage.recorded, damage.found)
            )
    return check


def describe_place(record: RunRecord, group: int, damage: Damage) -> str:
    """The sample and the token of an element of a column, where the group's lengths can still be read."""
    entry = record.entry(group)
    where = f"group g{group} ({entry.file} at byte {entry.offset})"
    if damage.place is None:
        return where
    lengths = record.lengths(group)
    if damage.field in ("tokens", "loss_mask", "rollout_logprobs", "weight_version") and lengths is not None:
        totals, responses = lengths
        sizes = totals if damage.field == "tokens" else responses
        ends = np.cumsum(sizes)
        sample = int(np.searchsorted(ends, damage.place, side="right"))
        if sample < len(sizes):
            kind = "token" if damage.field == "tokens" else "response token"
            return f"sample g{group}.{sample} {kind} {damage.place - int(ends[sample] - sizes[sample])}, {where}"
    if damage.field in ("group", "token_offsets"):
        return f"element {damage.place}, {where}"
    return f"sample g{group}.{damage.place}, {where}"


def digest_check(record: RunRecord, step: StepRecord, blocks: Mapping[int, Block], start: Start) -> Check:
    """The chained digest of all groups trained so far: the step's groups are the ones that the journal counted."""
    check = Check("digest")
    before = record.steps.get(step.rollout_id - 1)
    if before is None and step.rollout_id != start.version:
        check.skipped = "the digest of the step before is not there"
        return check
    previous = before.digest if before is not None else start.digest
    found = chain_digest(previous, [(group, blocks[group].digest) for group in step.groups])
    check.compared = 1
    if found != step.digest:
        where = f"groups {', '.join(f'g{group}' for group in step.groups)}"
        check.differences.append(
            Difference(step.rollout_id, "digest of the trained groups", where, step.digest, found)
        )
    return check
