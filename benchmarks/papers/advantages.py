# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Advantages of the papers, and the weights of the aggregations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.papers.responses import Response

EPSILON = 1e-6


def group_of(step: Sequence[Response], response: Response) -> list[float]:
    """Rewards of the response's group that are numbers, removed responses included: they were sampled."""
    return [other.reward for other in step if other.group == response.group and math.isfinite(other.reward)]


def grpo(step: Sequence[Response], response: Response, *, divide: bool = True) -> float:
    """DeepSeekMath sec. 4.1: (r - mean) / std; without the division Dr. GRPO's."""
    rewards = group_of(step, response)
    centred = response.reward - sum(rewards) / len(rewards)
    if not divide or max(rewards) == min(rewards):
        return centred if max(rewards) > min(rewards) else 0.0
    return centred / (np.std(rewards, ddof=1) + EPSILON)


def rloo(step: Sequence[Response], response: Response) -> float:
    """RLOO sec. 2.2: the reward minus the mean of the *other* rewards."""
    rewards = group_of(step, response)
    others = (sum(rewards) - response.reward) / (len(rewards) - 1) if len(rewards) > 1 else response.reward
    return response.reward - others


def reinforce_plus_plus(response: Response, *, kl_coef: float, gamma: float) -> np.ndarray:
    """The return of each trained token, by the definition of a return: a double sum over tokens."""
    trained = response.trained
    rewards = [-kl_coef * (response.rollout_logprobs[t] - response.ref_logprobs[t]) for t in trained]
    if rewards:
        rewards[-1] += response.reward
    out = np.zeros(len(response.mask))
    for k, t in enumerate(trained):
        out[t] = sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards)))
    return out


def global_normalisation(values: list[np.ndarray], keep: list[np.ndarray], *, whiten: bool) -> list[np.ndarray]:
    """REINFORCE++: (A - mean) / std over all trained tokens of the batch; `whiten` with n - 1 and epsilon inside."""
    flat = np.concatenate([v[k] for v, k in zip(values, keep, strict=True)])
    variance = flat.var(ddof=1) + 1e-8 if whiten else max(flat.var(), 1e-8)
    return [np.where(k, (v - flat.mean()) / math.sqrt(variance), 0.0) for v, k in zip(values, keep, strict=True)]


def counts(response: Response) -> bool:
    """Whether a response trains: it has a reward, was not removed and has a trained token."""
    return math.isfinite(response.reward) and not response.removed and len(response.trained) > 0


def token_advantages(step: Sequence[Response], name: str, **flags: float) -> list[np.ndarray]:
    """One advantage a response token; responses that do not train get zeros."""
    values = []
    for response in step:
        constant = np.ones(len(response.mask))
        if not math.isfinite(response.reward):
            values.append(0.0 * constant)
        elif name == "reinforce_plus_plus":
            values.append(reinforce_plus_plus(response, kl_coef=flags["kl_coef"], gamma=flags["gamma"]))
        elif name == "rloo":
            values.append(constant * rloo(step, response))
        else:
            plain = name in ("dr_grpo", "reinforce_plus_plus_baseline") or not flags.get("std", 1)
            values.append(constant * grpo(step, response, divide=not plain))
    if name.startswith("reinforce") or flags.get("normalize"):
        keep = [(response.mask > 0) & counts(response) for response in step]
        values = global_normalisation(values, keep, whiten=not name.startswith("reinforce"))
    return values


def token_weights(step: Sequence[Response], mode: str, max_response_len: int) -> list[np.ndarray]:
    """What each token's loss is multiplied by; the loss of the step is the plain sum.

    sample_mean     GRPO eq. 3: 1 / G sum_i 1 / |o_i| sum_t
    token_mean      DAPO eq. 8: 1 / sum_i |o_i| sum_i sum_t
    token_sum_norm  Dr. GRPO: 1 / (G L) sum_i sum_t with a constant L
    """
    counted = [response for response in step if counts(response)]
    tokens = sum(len(response.trained) for response in counted)
    found = []
    for response in step:
        weight = np.zeros(len(response.mask))
        if counts(response):
            own = {
                "sample_mean": 1.0 / (len(counted) * len(response.trained)),
                "token_mean": 1.0 / tokens,
                "token_sum_norm": 1.0 / (len(counted) * max_response_len),
            }
            weight[response.trained] = own[mode]
        found.append(weight)
    return found
