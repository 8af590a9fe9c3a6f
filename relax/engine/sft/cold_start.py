# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A short supervised start on one rank: next-token cross-entropy on demonstrations, by the same train backend as RL.

    loss = - sum over answer tokens of log p(token) / number of answer tokens in the batch

Demonstrations are ordinary `TrainSequence`s whose response is the answer; prompt tokens carry no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from relax.algorithms.reduce import step_reduction
from relax.algorithms.supervised.causal_lm import SftLoss
from relax.backends.base import OptimizerSpec, Part, StepStats, TrainBackend
from relax.data.columns import TrainSequence
from relax.utils.errors import DataError
from relax.utils.types import MediaFeatures


@dataclass(frozen=True)
class ColdStart:
    """How long and how fast. Warm-up and a linear decay to a tenth of the learning rate."""

    steps: int
    lr: float
    batch_size: int = 64
    warmup_steps: int = 20
    clip_grad: float = 1.0

    @property
    def optimizer(self) -> OptimizerSpec:
        return OptimizerSpec(
            lr=self.lr,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            clip_grad=self.clip_grad,
            warmup_steps=self.warmup_steps,
            decay_style="linear",
            decay_steps=self.steps,
            min_lr=0.1 * self.lr,
        )


def demonstration(
    number: int, prompt_ids: Sequence[int], answer_ids: Sequence[int], media: Sequence[MediaFeatures] = ()
) -> TrainSequence:
    """One demonstration; every answer token is trained. `number` identifies it within its batch."""
    if not answer_ids:
        raise DataError(f"demonstration {number} has no answer: give at least the end token")
    return TrainSequence(
        group=number,
        index=0,
        tokens=np.asarray([*prompt_ids, *answer_ids], np.int32),
        prompt_len=len(prompt_ids),
        loss_mask=np.ones(len(answer_ids), np.uint8),
        media=tuple(media),
    )


def train(
    backend: TrainBackend,
    draw: Callable[[int], Sequence[TrainSequence]],
    plan: ColdStart,
    on_step: Callable[[int, StepStats], None] = lambda step, stats: None,
) -> None:
    """Train `plan.steps` steps; `draw(step)` gives a step's demonstrations, which make one micro-batch."""
    loss = SftLoss()
    for step in range(plan.steps):
        batch = list(draw(step))
        reduction = step_reduction([sequence.loss_mask for sequence in batch], mode="token_mean")
        for sequence, weight in zip(batch, reduction.weights, strict=True):
            sequence.columns["loss_weight"] = weight
        stats = backend.backward(Part((tuple(batch),)), loss)
        update = backend.step(reduction.divisor)
        stats.grad_norm, stats.lr = update.grad_norm, update.lr
        on_step(step, stats)
