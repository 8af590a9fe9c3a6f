# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Per-token policy objectives: what they are given, what they return, and the two plain ones.

    clipped         ratio_t = exp(logp_t - old_logp_t)
                    loss_t  = -min(ratio_t * A_t, clip(ratio_t, 1 - eps_low, 1 + eps_high) * A_t)
                    dual    = min(loss_t, -c * A_t) where A_t < 0
    score function  loss_t  = -A_t * logp_t

Sources: PPO, arXiv:1707.06347, clipped surrogate; asymmetric clip, DAPO, arXiv:2503.14476, clip-higher; dual clip,
         arXiv:1912.09729; score function, REINFORCE, Williams 1992.
Shapes:  T = response tokens of a micro-batch, prompt tokens removed, masked tokens already made harmless. A sequence
         is never cut over micro-batches, so what an objective computes by sequence does not depend on the split.
Units:   log-probs in nats; ratio, advantage and loss without a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions

MAX_LOG_RATIO = 20.0  # nats; exp(20) = 4.9e8 keeps every product finite in float32


class PolicyTokens(NamedTuple):
    """What an objective reads. Only `logp_T` carries a gradient; where `keep_T` is False every float is 0."""

    logp_T: Tensor
    old_logp_T: Tensor
    advantage_T: Tensor
    keep_T: Tensor  # [T] bool, sampled and trained
    sequence_T: Tensor  # [T] int64, place of the token's sequence in the micro-batch
    num_sequences: int
    columns: Mapping[str, Tensor] = {}  # the columns that the algorithm's step statistic adds, each [T]


class PolicyLoss(NamedTuple):
    loss_T: Tensor  # [T], one value per token: the caller weighs and reduces
    ratio_T: Tensor  # [T], exp(logp - old_logp) of each token, without gradient
    clipped_T: Tensor  # [T] bool, a bound decided the loss (or, for a soft gate, most of its gradient)
    dual_clipped_T: Tensor  # [T] bool, the dual clip decided the loss
    overflow_T: Tensor  # [T] bool, |logp - old_logp| > MAX_LOG_RATIO before it was held


# (tokens, options) -> PolicyLoss: the form of `AlgorithmSpec.policy`
PolicyObjective = Callable[[PolicyTokens, "AlgorithmOptions"], PolicyLoss]


def safe_exp(log_ratio_T: Tensor) -> tuple[Tensor, Tensor]:
    """(exp of the log-ratio held within +-MAX_LOG_RATIO, where it was held). A held token has no gradient."""
    return torch.exp(log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)), log_ratio_T.abs() > MAX_LOG_RATIO


def safe_ratio(logp_T: Tensor, old_logp_T: Tensor) -> tuple[Tensor, Tensor]:
    """`safe_exp` of logp - old_logp."""
    return safe_exp(logp_T - old_logp_T)


def clipped_policy_loss(
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    *,
    eps_low: float | Tensor,
    eps_high: float | Tensor,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """The per-token loss; gradients flow through `logp_T` only.

    Where the clip decides, the loss is constant in `logp_T`, so that token has no gradient. `dual_clip` is c > 1:
    it bounds the loss of a token with A < 0 by -c * A, however far its ratio has grown.
    """
    ratio_T, overflow_T = safe_ratio(logp_T, old_logp_T.detach())
    return clip_ratio(ratio_T, overflow_T, advantage_T, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip)


def clip_ratio(
    ratio_T: Tensor,
    overflow_T: Tensor,
    advantage_T: Tensor,
    *,
    eps_low: float | Tensor,
    eps_high: float | Tensor,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """The clipped loss of a ratio, whatever its gradient is."""
    advantage_T = advantage_T.detach()
    free_T = -ratio_T * advantage_T
    held_T = -ratio_T.clamp(1.0 - eps_low, 1.0 + eps_high) * advantage_T  # type: ignore[arg-type]  # both of one kind
    loss_T = torch.maximum(free_T, held_T)
    dual_clipped_T = torch.zeros_like(overflow_T)
    if dual_clip is not None:
        ceiling_T = -dual_clip * advantage_T
        dual_clipped_T = (advantage_T < 0) & (loss_T > ceiling_T)
        loss_T = torch.where(dual_clipped_T, ceiling_T, loss_T)
    return PolicyLoss(loss_T, ratio_T.detach(), held_T > free_T, dual_clipped_T, overflow_T)


def clipped_objective(tokens: PolicyTokens, options: AlgorithmOptions) -> PolicyLoss:
    """PPO's clip at --eps-clip and --eps-clip-high, with --eps-clip-c the dual clip."""
    return clipped_policy_loss(
        tokens.logp_T,
        tokens.old_logp_T,
        tokens.advantage_T,
        eps_low=options.eps_clip,
        eps_high=options.clip_high,
        dual_clip=options.eps_clip_c,
    )


def score_function_objective(tokens: PolicyTokens, options: AlgorithmOptions) -> PolicyLoss:
    """-A logp: the gradient of REINFORCE, for samples of the current policy. The ratio is only measured."""
    ratio_T, overflow_T = safe_ratio(tokens.logp_T.detach(), tokens.old_logp_T.detach())
    never_T = torch.zeros_like(overflow_T)
    return PolicyLoss(-tokens.advantage_T.detach() * tokens.logp_T, ratio_T, never_T, never_T, overflow_T)
