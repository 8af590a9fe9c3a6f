# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""CISPO: the bounded ratio is a weight without gradient, so that a clipped token still learns.

    c_t    = min(ratio_t, 1 + eps_high) where A_t >= 0,  max(ratio_t, 1 - eps_low) where A_t < 0
    loss_t = -sg(c_t) * A_t * logp_t

The paper bounds the weight on both sides whatever the sign of A, with a lower bound that it leaves open. Here the
bound is on the side that PPO's clip acts on; `dual_clip` bounds the other side of a negative advantage.

Source:  MiniMax-M1, arXiv:2506.13585, CISPO. Units: log-probs in nats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from relax.algorithms.policy_loss import PolicyLoss, PolicyTokens, safe_ratio

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions


def cispo_objective(tokens: PolicyTokens, options: AlgorithmOptions) -> PolicyLoss:
    """`clipped_T` marks the tokens whose weight is not their ratio."""
    advantage_T = tokens.advantage_T.detach()
    ratio_T, overflow_T = safe_ratio(tokens.logp_T.detach(), tokens.old_logp_T.detach())
    bounded_T = torch.where(
        advantage_T >= 0, ratio_T.clamp(max=1.0 + options.clip_high), ratio_T.clamp(min=1.0 - options.eps_clip)
    )
    clipped_T, dual_clipped_T = bounded_T != ratio_T, torch.zeros_like(overflow_T)
    if options.eps_clip_c is not None:
        dual_clipped_T = (advantage_T < 0) & (bounded_T > options.eps_clip_c)
        bounded_T = torch.where(dual_clipped_T, torch.full_like(bounded_T, options.eps_clip_c), bounded_T)
    return PolicyLoss(-bounded_T * advantage_T * tokens.logp_T, ratio_T, clipped_T, dual_clipped_T, overflow_T)
