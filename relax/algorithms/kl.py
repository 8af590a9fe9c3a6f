# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Per-token estimators of the divergence from a reference, and what minimising each one really minimises.

    x = logp - ref_logp                      (tokens sampled from the policy p, reference q)

    name        value               expected value     expected gradient as a loss under sampling from p
    k1          x                   KL(p || q)         0: E_p[grad logp] = 0, so it only adds noise
    k2          x^2 / 2             E_p[x^2] / 2       grad KL(p || q)
    k3          exp(-x) - 1 + x     KL(p || q)         grad KL(q || p), the other direction
    low_var_kl  k3 held to +-10     below KL(p || q)   that of k3 where k3 < 10, and 0 elsewhere

The unbiased variant multiplies the value by the importance ratio p / p_old and lets the gradient flow through both.
It adds the score-function part, holds off policy too, and changes the expected gradient:

    k1, k3      grad KL(p || q)
    k2          grad E_p[x^2] / 2
    low_var_kl  grad of E_p of the held value; a held token still has the score-function part

Sources: Schulman, "Approximating KL divergence", 2020; unbiased variant, DeepSeek-V3.2, arXiv:2512.02556 sec. 3.1.
Shapes:  T = response tokens. Units: nats.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from relax.algorithms.policy_loss import MAX_LOG_RATIO

LOW_VAR_LIMIT = 10.0  # nats


def k1(x_T: Tensor) -> Tensor:
    return x_T


def k2(x_T: Tensor) -> Tensor:
    return 0.5 * x_T.square()


def k3(x_T: Tensor) -> Tensor:
    """The exponent is held at MAX_LOG_RATIO, so that one impossible token cannot overflow the sum."""
    return torch.exp((-x_T).clamp(max=MAX_LOG_RATIO)) - 1.0 + x_T


def low_var_kl(x_T: Tensor) -> Tensor:
    return k3(x_T).clamp(-LOW_VAR_LIMIT, LOW_VAR_LIMIT)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "low_var_kl": low_var_kl}


def kl_per_token(logp_T: Tensor, ref_logp_T: Tensor, *, estimator: str, ratio_T: Tensor | None = None) -> Tensor:
    """Divergence of each token; gradients flow through `logp_T`, and through `ratio_T` when it is given.

    `ratio_T` is p / p_old with its gradient: giving it selects the unbiased variant.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"unknown KL estimator {estimator!r}; known are {', '.join(ESTIMATORS)}")
    value_T = ESTIMATORS[estimator](logp_T - ref_logp_T.detach())
    return value_T if ratio_T is None else ratio_T * value_T
