# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Objectives of the papers: the loss of one step and its derivative by every log-prob, both worked out by hand.

Each `*_token` function returns (loss, d loss / d logp) of one token, from its current and old log-prob.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.papers.advantages import counts, token_advantages, token_weights
from benchmarks.papers.responses import Response

Pair = tuple[float, float]


def ppo_token(ratio: float, a: float, low: float, high: float, dual: float | None) -> Pair:
    """PPO eq. 7 with DAPO's two ranges; dual clip, 1912.09729 eq. 5. d ratio / d logp = ratio."""
    bounded = min(max(ratio, 1 - low), 1 + high)
    inside = ratio * a <= bounded * a  # the minimum is the free product, which moves with the policy
    objective, slope = (ratio * a, ratio * a) if inside else (bounded * a, 0.0)
    if dual is not None and a < 0 and objective < dual * a:
        objective, slope = dual * a, 0.0
    return -objective, -slope


def sapo_token(ratio: float, a: float, positive: float, negative: float) -> Pair:
    """SAPO: f(ratio) = 4 / tau sigmoid(tau (ratio - 1)); f' = 4 p (1 - p)."""
    tau = positive if a > 0 else negative
    p = 1.0 / (1.0 + math.exp(-tau * (ratio - 1.0)))
    return -4.0 / tau * p * a, -4.0 * p * (1.0 - p) * ratio * a


def cispo_token(logp: float, ratio: float, a: float, low: float, high: float, dual: float | None) -> Pair:
    """MiniMax-M1 eq. 4: -sg(bounded ratio) A log pi; the bound is on one side, by the sign of A."""
    weight = min(ratio, 1 + high) if a >= 0 else max(ratio, 1 - low)
    if dual is not None and a < 0:
        weight = min(weight, dual)
    return -weight * a * logp, -weight * a


def kl_token(logp: float, ref: float, estimator: str) -> Pair:
    """Schulman's estimators and their derivatives."""
    x = logp - ref
    if estimator == "k1":
        return x, 1.0
    if estimator == "k2":
        return x * x / 2, x
    value, slope = math.exp(-x) - 1 + x, 1 - math.exp(-x)
    if estimator == "low_var_kl" and value > 10.0:
        return 10.0, 0.0
    return value, slope


def m2po_threshold(step: Sequence[Response], advantages: list[np.ndarray], old: str, budget: float) -> float:
    """The level at which squared log-ratios of harmful tokens are held so that their mean is the budget, bisected."""
    squares = []
    for response, advantage in zip(step, advantages, strict=True):
        for t in response.trained if counts(response) else ():
            x = response.logp[t] - getattr(response, old)[t]
            if (advantage[t] > 0 and x > 0) or (advantage[t] < 0 and x < 0):
                squares.append(x * x)
    if not squares or sum(squares) / len(squares) <= budget:
        return math.sqrt(max(squares, default=0.0))
    low, high = 0.0, math.sqrt(max(squares))
    for _ in range(200):
        middle = (low + high) / 2
        mean = sum(min(s, middle * middle) for s in squares) / len(squares)
        low, high = (middle, high) if mean < budget else (low, middle)
    return high


def policy_terms(
    name: str, response: Response, advantage: np.ndarray, old: np.ndarray, flags: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """(loss, slope) of each token by its algorithm; 0 where it is not trained."""
    loss, slope = np.zeros(len(old)), np.zeros(len(old))
    trained = response.trained
    low, high = flags.get("eps_clip", 0.2), flags.get("eps_clip_high", flags.get("eps_clip", 0.2))
    dual = flags.get("eps_clip_c")
    sequence = math.exp(np.mean([response.logp[t] - old[t] for t in trained])) if len(trained) else 1.0
    for t in trained:
        ratio, a = math.exp(response.logp[t] - old[t]), advantage[t]
        if name == "sapo":
            pair = sapo_token(ratio, a, flags.get("sapo_tau_pos", 1.0), flags.get("sapo_tau_neg", 1.05))
        elif name == "cispo":
            pair = cispo_token(response.logp[t], ratio, a, low, high, dual)
        elif name == "rloo":
            pair = (-a * response.logp[t], -a)
        elif name == "gspo":  # each token of the sequence adds the sequence's own objective
            pair = ppo_token(sequence, a, low, high, dual)
        elif name == "m2po":
            tau = flags["m2_threshold"]
            floors = flags.get("m2po_eps_clip_floor", 0.3), flags.get("m2po_eps_clip_high_floor", 0.5)
            pair = ppo_token(ratio, a, max(1 - math.exp(-tau), floors[0]), max(math.exp(tau) - 1, floors[1]), dual)
        else:
            pair = ppo_token(ratio, a, low, high, dual)
        loss[t], slope[t] = pair
    return loss, slope


def corrections(response: Response, advantage: np.ndarray, old: np.ndarray, flags: dict[str, Any]) -> np.ndarray:
    """TIS, IcePop and OPSM: the factor of each token's policy loss, a constant of the gradient."""
    factor = np.ones(len(old))
    for t in response.trained:
        if flags.get("use_tis"):
            w = math.exp(old[t] - response.rollout_logprobs[t])
            low, high = flags.get("tis_clip_low", 0.0), flags.get("tis_clip", 2.0)
            inside = low <= w <= high
            factor[t] = (w if inside else 0.0) if flags.get("tis_mode") == "mask" else min(max(w, low), high)
        if flags.get("use_opsm"):
            moved = np.mean([old[s] - response.logp[s] for s in response.trained])
            if moved > flags.get("opsm_delta", 1e-4) and advantage[t] < 0:
                factor[t] = 0.0
    return factor


def step_loss(step: Sequence[Response], name: str, **flags: Any) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """(loss, d loss / d logp, d loss / d entropy) of a step under `flags`, whose names are those of the options."""
    given = {"kl_coef": flags.get("kl_coef", 0.0), "gamma": flags.get("gamma", 1.0)}
    advantages = token_advantages(
        step,
        name,
        std=not flags.get("disable_grpo_std_normalization"),
        normalize=flags.get("normalize_advantages", 0),
        **given,
    )
    weights = token_weights(step, flags["loss_reduction"], flags.get("rollout_max_response_len", 1))
    column = {"rollout": "rollout_logprobs", "old": "old_logprobs", "current": "logp"}[flags["old_log_probs"]]
    if name == "m2po":
        flags = flags | {"m2_threshold": m2po_threshold(step, advantages, column, flags.get("m2po_budget", 0.01))}
    total, by_logp, by_entropy = 0.0, [], []
    for response, advantage, weight in zip(step, advantages, weights, strict=True):
        old = getattr(response, column)
        loss, slope = policy_terms(name, response, advantage, old, flags)
        factor = corrections(response, advantage, old, flags)
        loss, slope = loss * factor, slope * factor
        if flags.get("use_kl_loss"):
            coefficient = flags["kl_loss_coef"]
            for t in response.trained:
                value, change = kl_token(response.logp[t], response.ref_logprobs[t], flags.get("kl_loss_type", "k1"))
                if flags.get("use_unbiased_kl"):
                    ratio = math.exp(response.logp[t] - old[t])
                    value, change = ratio * value, ratio * (value + change)
                loss[t] += coefficient * value
                slope[t] += coefficient * change
        bonus = flags.get("entropy_coef", 0.0)
        loss = loss - bonus * np.where(response.mask > 0, response.entropy, 0.0)
        total += float((weight * loss).sum())
        by_logp.append(weight * slope)
        by_entropy.append(-bonus * weight)
    return total, by_logp, by_entropy
