# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One step trained again with open eyes: what every token was given, and what it added to each term of the loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relax.backends.base import LossFunction, Part, StepStats, Term, TokenBatch, TrainBackend
from relax.components.messages import AdvantageReport, TrainReport
from relax.core.replay.prompts import Prompts
from relax.core.replay.record import RunRecord, StepRecord
from relax.core.replay.rerun import Rerun
from relax.core.run_folder import new_run_id
from relax.utils.errors import ConfigError, DataError
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


class OpenBackend:
    """A train backend that keeps what each token was given and what it added, while `keeps` is true."""

    def __init__(self, backend: TrainBackend) -> None:
        self._backend = backend
        self.keeps = False
        self.optimizer_steps = 0  # since the last `keep_from_now`
        self.samples: dict[tuple[int, int], SampleTokens] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def keep_from_now(self) -> None:
        self.keeps, self.optimizer_steps = True, 0

    def backward(self, part: Part, loss: LossFunction) -> StepStats:
        return self._backend.backward(part, _OpenLoss(loss, part, self) if self.keeps else loss)

    def step(self, divisor: float) -> StepStats:
        self.optimizer_steps += 1
        return self._backend.step(divisor)


class _OpenLoss:
    """The loss of one part, whose micro-batches come in their order; empty ones never reach a loss."""

    def __init__(self, loss: LossFunction, part: Part, opened: OpenBackend) -> None:
        if not hasattr(loss, "per_token"):
            raise ConfigError(f"{type(loss).__name__} does not say what each token adds: it has no per_token method")
        self._loss, self.needs, self.objective = loss, loss.needs, loss.objective
        self._micro_batches = iter([micro for micro in part.micro_batches if micro])
        self._opened = opened

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        with torch.no_grad():
            terms = self._loss.per_token(batch)  # type: ignore[attr-defined]
        sequence = _array(batch.sequence)
        for place, sample in enumerate(next(self._micro_batches)):
            own = sequence == place
            self._opened.samples[sample.uid] = SampleTokens(
                optimizer_step=self._opened.optimizer_steps,
                log_probs=_array(batch.log_probs)[own],
                mask=_array(batch.mask)[own] > 0,
                columns={name: _array(values)[own] for name, values in batch.columns.items()},
                terms={name: _array(term.value_T)[own] for name, term in terms.items()},
            )
        return self._loss(batch)


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy()


async def view_step(record: RunRecord, step: StepRecord) -> StepView:
    """Train forward from the nearest weights, and keep every token of `step`."""
    start, opened = record.start_for(step.rollout_id), []

    def open_backend(backend: TrainBackend) -> TrainBackend:
        opened.append(OpenBackend(backend))
        return opened[0]

    prompts, memory = Prompts(record), Path("/dev/shm")
    parent = memory if memory.is_dir() else record.folder.root
    with owned_folder(parent / f"relax-why-{new_run_id()}") as shared_dir:
        rerun = Rerun(record, shared_dir, wrap_backend=open_backend)
        try:
            await rerun.open(start)
            for number in range(start.version, step.rollout_id + 1):
                current = record.step(number)
                blocks = {group: record.block(group) for group in current.groups}
                features, changed = await prompts.with_media(number, blocks.values())
                if changed:
                    raise DataError(str(changed[0]))
                if number == step.rollout_id:
                    opened[0].keep_from_now()
                advantages, report = await rerun.step(current, blocks, features)
                if number < step.rollout_id and number + 1 in record.published:
                    await rerun.publish(number + 1)
        finally:
            prompts.close()
            await rerun.close()
    return StepView(advantages, report, opened[0].samples)
