# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""SAPO: a sigmoid in place of the clip.

    loss_t = -(4 / tau) * sigmoid(tau * (ratio_t - 1)) * A_t,  tau = tau_pos where A_t > 0, else tau_neg

The gradient is that of the ratio times 4 p (1 - p), p the sigmoid: 1 at ratio 1, fading on both sides, and faster for
negative advantages (tau_neg > tau_pos), whose updates raise many tokens that were not sampled.

Source:  SAPO, arXiv:2511.20347 sec. 3. Units: log-probs in nats; tau without a unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from relax.algorithms.policy_loss import PolicyLoss, PolicyTokens, safe_ratio

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions

OPEN_GATE = 0.9  # a token whose gradient the gate leaves less than this share of counts as clipped


def sapo_objective(tokens: PolicyTokens, options: AlgorithmOptions) -> PolicyLoss:
    """There is no border, so `clipped_T` marks the tokens that keep less than `OPEN_GATE` of their gradient."""
    advantage_T = tokens.advantage_T.detach()
    ratio_T, overflow_T = safe_ratio(tokens.logp_T, tokens.old_logp_T.detach())
    tau_T = torch.full_like(ratio_T, options.sapo_tau_neg).masked_fill(advantage_T > 0, options.sapo_tau_pos)
    gate_T = torch.sigmoid(tau_T * (ratio_T - 1.0))
    kept_T = 4.0 * gate_T * (1.0 - gate_T)
    never_T = torch.zeros_like(overflow_T)
    return PolicyLoss(-4.0 / tau_T * gate_T * advantage_T, ratio_T.detach(), kept_T < OPEN_GATE, never_T, overflow_T)
