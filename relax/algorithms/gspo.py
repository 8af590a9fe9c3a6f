# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""GSPO: the ratio of a sequence, not of a token, is clipped.

    s       = exp(mean over the trained tokens of the sequence of (logp_t - old_logp_t))
    ratio_t = sg(s) * exp(logp_t - sg(logp_t))            equal to s; its gradient is s * grad logp_t
    loss_t  = -min(ratio_t A_t, clip(ratio_t, 1 - eps_low, 1 + eps_high) A_t)

With one advantage a sequence this has the value and the gradient of GSPO itself under every reduction that weighs the
tokens of a sequence alike; it also allows an advantage a token.

Source:  GSPO, arXiv:2507.18071, the sequence objective and its token form, GSPO-token.
Shapes:  T = response tokens, N = sequences. Units: log-probs in nats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax.algorithms.importance import mean_by_sequence
from relax.algorithms.policy_loss import PolicyLoss, PolicyTokens, clip_ratio, safe_exp, safe_ratio

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions


def gspo_objective(tokens: PolicyTokens, options: AlgorithmOptions) -> PolicyLoss:
    """`ratio_T` of the result is that of each token, as for the other algorithms; the clip is that of its sequence."""
    gap_T = tokens.logp_T.detach() - tokens.old_logp_T.detach()
    gap_N = mean_by_sequence(gap_T, tokens.keep_T, tokens.sequence_T, tokens.num_sequences)
    sequence_ratio_T, _ = safe_exp(gap_N[tokens.sequence_T] + (tokens.logp_T - tokens.logp_T.detach()))
    token_ratio_T, overflow_T = safe_ratio(tokens.logp_T.detach(), tokens.old_logp_T.detach())
    policy = clip_ratio(
        sequence_ratio_T,
        overflow_T,
        tokens.advantage_T,
        eps_low=options.eps_clip,
        eps_high=options.clip_high,
        dual_clip=options.eps_clip_c,
    )
    return policy._replace(ratio_T=token_ratio_T)
