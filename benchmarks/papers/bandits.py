# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What estimators must be on average: expected gradients of a bandit with a softmax policy, in closed form.

One prompt, K answers of one token, policy pi = softmax(theta), expected reward J = sum_a pi_a r_a; gradients are by
theta.
"""

from __future__ import annotations

import math

import numpy as np

THETA = np.array([0.3, -0.4, 0.9])
REWARD = np.array([1.0, -0.5, 0.25])
OLD = np.array([0.1, 0.2, 0.4])  # logits of the policy that sampled
PROXIMAL = np.array([-0.1, 0.3, 0.2])  # and of one between the two
REFERENCE = np.array([-0.5, 0.7, 0.2])


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def score(action: int, logits: np.ndarray = THETA) -> np.ndarray:
    """grad log pi(action) = e_action - pi."""
    return np.eye(len(logits))[action] - probabilities(logits)


def gradient_of_reward(reward: np.ndarray = REWARD, logits: np.ndarray = THETA) -> np.ndarray:
    """grad J = sum_a pi_a r_a grad log pi_a."""
    pi = probabilities(logits)
    return sum((pi[a] * reward[a] * score(a, logits) for a in range(len(pi))), np.zeros(len(pi)))


def group_mean_shrinks(samples: int) -> np.ndarray:
    """r - mean of n contains the sample itself, so its gradient is (n - 1) / n of grad J."""
    return (samples - 1) / samples * gradient_of_reward()


def gradient_of_kl(logits: np.ndarray = THETA, reference: np.ndarray = REFERENCE) -> np.ndarray:
    """grad KL(pi || ref) = sum_a pi_a (log pi_a - log ref_a) grad log pi_a."""
    x = np.log(probabilities(logits)) - np.log(probabilities(reference))
    return gradient_of_reward(x, logits)


def grpo_of_binary_rewards(right: np.ndarray, samples: int) -> np.ndarray:
    """E of GRPO's gradient for rewards 0 and 1, with p the chance to be right and c the right ones of n:

        sum_c C(n, c) p^c q^(n-c) sqrt(c (n - c) (n - 1) / n) / (n p q) * grad p

    since A is (1 - c/n) / s and -(c/n) / s with s^2 = c (n - c) / (n (n - 1)), and the mean of grad log pi is
    grad p / p over right answers, -grad p / q over wrong ones.
    """
    p = float(probabilities(THETA)[right > 0].sum())
    q, n = 1.0 - p, samples
    size = sum(math.comb(n, c) * p**c * q ** (n - c) * math.sqrt(c * (n - c) * (n - 1) / n) for c in range(1, n)) / (
        n * p * q
    )
    return size * gradient_of_reward(right)


def clipped(low: float, high: float) -> np.ndarray:
    """Off policy, rewards as advantages: an action whose ratio lies beyond its bound adds nothing."""
    pi, old = probabilities(THETA), probabilities(OLD)
    total = np.zeros(len(pi))
    for a, reward in enumerate(REWARD):
        ratio = pi[a] / old[a]
        beyond = ratio > 1 + high if reward > 0 else ratio < 1 - low
        total += 0.0 if beyond else pi[a] * reward * score(a)
    return total


def truncated(cap: float) -> np.ndarray:
    """Decoupled: samples of `OLD`, ratio to `PROXIMAL`, weight proximal / old cut at `cap`."""
    pi, old, between = (probabilities(logits) for logits in (THETA, OLD, PROXIMAL))
    weight = np.minimum(between / old, cap)
    return sum((old[a] * weight[a] * pi[a] / between[a] * REWARD[a] * score(a) for a in range(3)), np.zeros(3))


def soft_gate(tau: float) -> np.ndarray:
    """SAPO: the ratio's gradient times 4 p (1 - p), p = sigmoid(tau (ratio - 1)), averaged over `OLD`."""
    pi, old = probabilities(THETA), probabilities(OLD)
    p = 1.0 / (1.0 + np.exp(-tau * (pi / old - 1.0)))
    return sum((pi[a] * 4 * p[a] * (1 - p[a]) * REWARD[a] * score(a) for a in range(3)), np.zeros(3))
