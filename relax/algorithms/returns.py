# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Returns of tokens: the outcome at the last trained token, a KL penalty at each of them.

    r_t = -kl_coef * (logp_t - ref_logp_t) + [t is the last trained token] * score
    G_t = sum over trained tokens k >= t of gamma^(k - t) * r_k

Log-probs are the engine's, of the distribution that was sampled from. Steps are counted in trained tokens, so tokens
of a tool or of padding in between neither are penalised nor discount anything.

Source:  REINFORCE++, arXiv:2501.03262 sec. 3 (token-level KL penalty, discounted return).
Shapes:  a list of arrays [R], one a sample. Units: rewards; kl_coef in reward per nat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from relax.algorithms.advantages import Outcomes, TokenAdvantages

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions


def discounted_returns(outcomes: Outcomes, options: AlgorithmOptions) -> TokenAdvantages:
    """The return of every trained token, 0 elsewhere; a sample without trained tokens has none."""
    found = []
    for place, mask in enumerate(outcomes.masks):
        kept_R = np.asarray(mask) > 0
        returns_R = np.zeros(len(kept_R))
        if kept_R.any():
            reward_K = token_rewards(outcomes, place, kept_R, options.kl_coef)
            returns_R[kept_R] = reverse_discounted_sum(reward_K, options.gamma)
        found.append(returns_R)
    return TokenAdvantages(found, found)


def token_rewards(outcomes: Outcomes, place: int, kept_R: np.ndarray, kl_coef: float) -> np.ndarray:
    """float64 [K], the rewards of the trained tokens of one sample."""
    reward_K = np.zeros(int(kept_R.sum()))
    if kl_coef:
        engine_K, ref_K = (
            np.asarray(outcomes.columns[name][place], np.float64)[kept_R]
            for name in ("rollout_logprobs", "ref_logprobs")
        )
        reward_K -= kl_coef * (engine_K - ref_K)
    reward_K[-1] += outcomes.score_S[place]
    return reward_K


def reverse_discounted_sum(reward_K: np.ndarray, gamma: float) -> np.ndarray:
    """G_k = r_k + gamma G_{k+1}."""
    if gamma == 1.0:
        return np.cumsum(reward_K[::-1])[::-1]
    returns_K, ahead = np.zeros(len(reward_K)), 0.0
    for place in range(len(reward_K) - 1, -1, -1):
        ahead = reward_K[place] + gamma * ahead
        returns_K[place] = ahead
    return returns_K
