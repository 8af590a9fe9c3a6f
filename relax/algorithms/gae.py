# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Generalised advantage estimation over the sampled tokens of each sample.

    delta_k = r_k + gamma V_{k+1} - V_k          V after the last sampled token is 0
    A_k     = delta_k + gamma lambd A_{k+1}
    return  = A_k + V_k                          what the critic is trained on

k counts sampled tokens. Observations (tool output, the text between turns) are no actions: they carry no reward, no
value and no step of the discount, and the token sampled before one is followed by the token sampled after it.

Source:  Schulman et al., arXiv:1506.02438, GAE(gamma, lambda); over tokens, InstructGPT, arXiv:2203.02155.
Shapes:  S = samples, R = response tokens of one of them; V_k is the critic's value before token k is sampled.
Units:   rewards, values, advantages and returns in reward. Everything is computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relax.algorithms.advantages import Outcomes, TokenAdvantages

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions


class Gae(NamedTuple):
    """One array a sample, float64 [R]; 0 on tokens that were not sampled."""

    advantages: list[np.ndarray]
    returns: list[np.ndarray]


def gae(
    rewards: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    sampled: Sequence[np.ndarray],
    *,
    gamma: float = 1.0,
    lambd: float = 1.0,
) -> Gae:
    """Advantages and returns of every token. What stands in `rewards` and `values` on other tokens has no effect.

    Raises ValueError when the arrays of a sample differ in length, or a value of a sampled token is not finite.
    """
    places = [np.flatnonzero(np.asarray(mask) > 0) for mask in sampled]
    _check(rewards, values, sampled, places)
    longest = max((len(place) for place in places), default=0)
    reward_SK, value_SK = np.zeros((len(places), longest)), np.zeros((len(places), longest + 1))
    for row, place in enumerate(places):
        reward_SK[row, : len(place)] = np.asarray(rewards[row], np.float64)[place]
        value_SK[row, : len(place)] = np.asarray(values[row], np.float64)[place]
    # Behind a shorter sample's end everything is 0, so the recursion reaches its last token with A = V = 0.
    delta_SK = reward_SK + gamma * value_SK[:, 1:] - value_SK[:, :-1]
    advantage_SK, after_S = np.zeros_like(delta_SK), np.zeros(len(places))
    for k in range(longest - 1, -1, -1):
        after_S = delta_SK[:, k] + gamma * lambd * after_S
        advantage_SK[:, k] = after_S
    return_SK = advantage_SK + value_SK[:, :-1]
    return Gae(_spread(advantage_SK, places, sampled), _spread(return_SK, places, sampled))


def gae_advantages(outcomes: Outcomes, options: AlgorithmOptions) -> TokenAdvantages:
    """The advantage function of PPO: values by the column `values`, sampled tokens by their weight version."""
    sampled = [np.asarray(version) >= 0 for version in outcomes.columns["weight_version"]]
    kl = None
    if options.kl_coef:
        pairs = zip(outcomes.columns["rollout_logprobs"], outcomes.columns["ref_logprobs"], strict=True)
        kl = [np.asarray(engine, np.float64) - np.asarray(ref, np.float64) for engine, ref in pairs]
    rewards = token_rewards(outcomes.score_S, sampled, kl=kl, kl_coef=options.kl_coef)
    made = gae(rewards, outcomes.columns["values"], sampled, gamma=options.gamma, lambd=options.lambd)
    return TokenAdvantages(made.advantages, made.returns)


def token_rewards(
    rewards: Sequence[float] | np.ndarray,
    sampled: Sequence[np.ndarray],
    *,
    kl: Sequence[np.ndarray] | None = None,
    kl_coef: float = 0.0,
) -> list[np.ndarray]:
    """The reward of each token, float64 [R]: that of the sample on its last sampled token, less kl_coef * kl on each.

    `kl` is the estimate of each token's divergence from the reference, in nats; tokens that were not sampled get 0.
    """
    out = []
    for place, mask in enumerate(sampled):
        taken_R = np.asarray(mask) > 0
        reward_R = np.zeros(len(taken_R))
        if kl is not None and kl_coef:
            reward_R[taken_R] = -kl_coef * np.asarray(kl[place], np.float64)[taken_R]
        if taken_R.any():
            reward_R[np.flatnonzero(taken_R)[-1]] += float(rewards[place])
        out.append(reward_R)
    return out


def _spread(value_SK: np.ndarray, places: list[np.ndarray], sampled: Sequence[np.ndarray]) -> list[np.ndarray]:
    out = [np.zeros(len(mask)) for mask in sampled]
    for row, place in enumerate(places):
        out[row][place] = value_SK[row, : len(place)]
    return out


def _check(
    rewards: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    sampled: Sequence[np.ndarray],
    places: list[np.ndarray],
) -> None:
    for row, (reward, value, mask) in enumerate(zip(rewards, values, sampled, strict=True)):
        if not len(reward) == len(value) == len(mask):
            raise ValueError(f"sample {row}: {len(reward)} rewards, {len(value)} values, {len(mask)} tokens")
        if not np.isfinite(np.asarray(value, np.float64)[places[row]]).all():
            raise ValueError(f"sample {row}: a critic's value is not a finite number")
