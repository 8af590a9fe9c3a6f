# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Clipped policy-gradient loss: PPO, GRPO, DAPO "clip-higher" and the dual clip.

    ratio_t = exp(logp_t - old_logp_t)
    loss_t  = -min(ratio_t * A_t, clip(ratio_t, 1 - eps_low, 1 + eps_high) * A_t)
    dual    = min(loss_t, -c * A_t) where A_t < 0

Sources: PPO, arXiv:1707.06347 eq. 7; asymmetric clip, DAPO, arXiv:2503.14476 sec. 3.1; dual clip,
         arXiv:1912.09729 eq. 5.
Shapes:  T = response tokens of a micro-batch, prompt tokens removed, masked tokens already made harmless.
Units:   log-probs in nats; ratio, advantage and loss without a unit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats; exp(20) = 4.9e8 keeps every product finite in float32


class PolicyLoss(NamedTuple):
    loss_T: Tensor  # [T], one value per token: the caller reduces
    ratio_T: Tensor  # [T], without gradient
    clipped_T: Tensor  # [T] bool, the clip to 1 - eps_low .. 1 + eps_high decided the loss
    dual_clipped_T: Tensor  # [T] bool, the dual clip decided the loss
    overflow_T: Tensor  # [T] bool, |logp - old_logp| > MAX_LOG_RATIO before it was held


def safe_ratio(logp_T: Tensor, old_logp_T: Tensor) -> tuple[Tensor, Tensor]:
    """(exp of the log-ratio held within +-MAX_LOG_RATIO, where it was held). A held token has no gradient."""
    log_ratio_T = logp_T - old_logp_T
    return torch.exp(log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)), log_ratio_T.detach().abs() > MAX_LOG_RATIO


def clipped_policy_loss(
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """The per-token loss; gradients flow through `logp_T` only.

    Where the clip decides, the loss is constant in `logp_T`, so that token has no gradient. `dual_clip` is c > 1:
    it bounds the loss of a token with A < 0 by -c * A, however far its ratio has grown.
    """
    old_logp_T, advantage_T = old_logp_T.detach(), advantage_T.detach()
    ratio_T, overflow_T = safe_ratio(logp_T, old_logp_T)
    free_T = -ratio_T * advantage_T
    held_T = -ratio_T.clamp(1.0 - eps_low, 1.0 + eps_high) * advantage_T
    loss_T = torch.maximum(free_T, held_T)
    dual_clipped_T = torch.zeros_like(overflow_T)
    if dual_clip is not None:
        ceiling_T = -dual_clip * advantage_T
        dual_clipped_T = (advantage_T < 0) & (loss_T.detach() > ceiling_T)
        loss_T = torch.where(dual_clipped_T, ceiling_T, loss_T)
    clipped_T = (held_T > free_T).detach()
    return PolicyLoss(loss_T, ratio_T.detach(), clipped_T, dual_clipped_T, overflow_T)
