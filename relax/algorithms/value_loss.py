# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The critic's loss: squared error to the returns, held near the values that the advantages were made with.

    held_t = old_t + clip(value_t - old_t, -eps, eps)
    loss_t = max((value_t - return_t)^2, (held_t - return_t)^2)

The maximum is pessimistic: moving further than eps from the old value never lowers the loss, and a token whose held
error is the larger one has no gradient.

Source:  Schulman et al., PPO reference implementation (value clipping); studied as choice C13 in arXiv:2006.05990.
Shapes:  T = response tokens of a micro-batch. Units: values and returns in reward, the loss in reward squared.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relax.algorithms.loss import Term, TokenBatch
from relax.algorithms.reduce import masked
from relax.utils.errors import InternalError


class ValueLoss(NamedTuple):
    loss_T: Tensor  # [T], one value per token: the caller reduces
    clipped_T: Tensor  # [T] bool, the held value decided the loss


def clipped_value_loss(value_T: Tensor, old_value_T: Tensor, return_T: Tensor, *, clip: float) -> ValueLoss:
    """Gradients flow through `value_T` only. `clip` 0 does not hold the values."""
    old_value_T, return_T = old_value_T.detach(), return_T.detach()
    free_T = (value_T - return_T).square()
    if clip == 0:
        return ValueLoss(free_T, torch.zeros_like(free_T, dtype=torch.bool))
    held_T = (old_value_T + (value_T - old_value_T).clamp(-clip, clip) - return_T).square()
    return ValueLoss(torch.maximum(free_T, held_T), (held_T > free_T).detach())


class CriticLoss:
    """LossFunction of the critic. `value_residual` and `return` with their squares make the explained variance."""

    needs = frozenset({"values"})
    objective = ("value_loss",)
    columns = frozenset({"values", "returns", "loss_weight"})

    def __init__(self, clip: float) -> None:
        self.clip = clip

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        if batch.values is None:
            raise InternalError("the loss declares that it needs 'values', and the backend gave none")
        keep_T = batch.mask > 0
        old_T, return_T = (self._column(batch, name) for name in ("values", "returns"))
        loss = clipped_value_loss(masked(batch.values, keep_T), masked(old_T, keep_T), masked(return_T, keep_T),
                                  clip=self.clip)  # fmt: skip
        weight_T = masked(self._column(batch, "loss_weight"), keep_T)
        count = float(keep_T.sum())
        residual_T, kept_T = masked(return_T - old_T, keep_T).double(), masked(return_T, keep_T).double()
        return {
            "value_loss": Term((masked(loss.loss_T, weight_T > 0) * weight_T).sum(), float(weight_T.sum())),
            "value_clip_fraction": Term(masked(loss.clipped_T.float(), keep_T).sum(), count),
            "value": Term(masked(batch.values.detach(), keep_T).sum(), count),
            "return": Term(kept_T.sum(), count),
            "return_square": Term(kept_T.square().sum(), count),
            "value_residual": Term(residual_T.sum(), count),
            "value_residual_square": Term(residual_T.square().sum(), count),
        }

    def _column(self, batch: TokenBatch, name: str) -> Tensor:
        if name not in batch.columns:
            raise InternalError(f"the loss needs column {name!r}; the micro-batch has {sorted(batch.columns)}")
        return batch.columns[name].detach()
