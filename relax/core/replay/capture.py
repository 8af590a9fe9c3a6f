# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One step trained again with open eyes: what every token was given, and what it added to each term of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relax.algorithms.loss import LossFunction, Term, TokenBatch
from relax.components.messages import AdvantageReport, TrainReport
from relax.components.training_data import make_plan
from relax.core.build import batch_settings
from relax.core.replay.prompts import Prompts
from relax.core.replay.record import RunRecord, StepRecord
from relax.core.replay.rerun import Rerun, released_groups
from relax.core.run_folder import new_run_id
from relax.utils.errors import ConfigError, DataError, InternalError
from relax.utils.owned_folder import owned_folder


@dataclass(frozen=True)
class SampleTokens:
    """The response tokens of one sample, `[R]` each, as the loss saw them."""

    optimizer_step: int
    log_probs: np.ndarray  # current, nats
    mask: np.ndarray
    columns: dict[str, np.ndarray]  # advantages, loss_weight, rollout_logprobs, ...
    terms: dict[str, np.ndarray]  # {term: what the token adds to its sum}


@dataclass
class StepView:
    """A step's training, computed again."""

    advantages: AdvantageReport
    report: TrainReport
    samples: dict[tuple[int, int], SampleTokens] = field(default_factory=dict)  # by (group, place)


class OpenLoss:
    """A loss that keeps what each token added, while `keeps` is true."""

    def __init__(self, loss: LossFunction) -> None:
        if not hasattr(loss, "per_token"):
            raise ConfigError(f"{type(loss).__name__} does not say what each token adds: it has no per_token method")
        self._loss, self.needs, self.objective = loss, loss.needs, loss.objective
        self.keeps = False
        self.batches: list[tuple[TokenBatch, dict[str, np.ndarray]]] = []

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        if self.keeps:
            with torch.no_grad():
                terms = self._loss.per_token(batch)  # type: ignore[attr-defined]
            self.batches.append((batch, {name: _array(term.value_T) for name, term in terms.items()}))
        return self._loss(batch)


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy()


async def view_step(record: RunRecord, step: StepRecord) -> StepView:
    """Train forward from the nearest weights, and keep every token of `step`."""
    start = record.start_for(step.rollout_id)
    losses: list[OpenLoss] = []

    def wrap(loss: LossFunction) -> LossFunction:
        losses.append(OpenLoss(loss))
        return losses[0]

    prompts, memory = Prompts(record), Path("/dev/shm")
    parent = memory if memory.is_dir() else record.folder.root
    with owned_folder(parent / f"relax-why-{new_run_id()}") as shared_dir:
        rerun = Rerun(record, shared_dir, wrap_loss=wrap)
        try:
            await rerun.open(start)
            for number in range(start.version, step.rollout_id + 1):
                current = record.step(number)
                blocks = {group: record.block(group) for group in current.groups}
                features, changed = await prompts.with_media(number, blocks.values())
                if changed:
                    raise DataError(str(changed[0]))
                losses[0].keeps = number == step.rollout_id
                advantages, report = await rerun.step(current, blocks, features)
                if not losses[0].keeps and number + 1 in record.published:
                    await rerun.publish(number + 1)
        finally:
            prompts.close()
            await rerun.close()
    groups = released_groups([blocks[group] for group in step.groups], features)
    plan = make_plan(groups, batch_settings(record.config), 1)
    micro_batches = [(number, micro) for number, ranks in enumerate(plan.steps) for micro in ranks[0] if micro]
    return StepView(advantages, report, _by_sample(micro_batches, losses[0].batches))


def _by_sample(
    micro_batches: Sequence[tuple[int, tuple[tuple[int, int], ...]]],
    batches: Sequence[tuple[TokenBatch, dict[str, np.ndarray]]],
) -> dict[tuple[int, int], SampleTokens]:
    if len(batches) != len(micro_batches):
        raise InternalError(f"the plan has {len(micro_batches)} micro-batches, the loss saw {len(batches)}")
    samples = {}
    for (number, uids), (batch, terms) in zip(micro_batches, batches, strict=True):
        sequence = _array(batch.sequence)
        for place, uid in enumerate(uids):
            own = sequence == place
            samples[uid] = SampleTokens(
                optimizer_step=number,
                log_probs=_array(batch.log_probs)[own],
                mask=_array(batch.mask)[own] > 0,
                columns={name: _array(values)[own] for name, values in batch.columns.items()},
                terms={name: values[own] for name, values in terms.items()},
            )
    return samples
