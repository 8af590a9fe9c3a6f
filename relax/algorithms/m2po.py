# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""M2PO: the clip range follows from how far the policy has moved, measured over the whole optimizer step.

    x_t      = logp_t - old_logp_t
    harmful  tokens with (A > 0 and x > 0) or (A < 0 and x < 0): their update moves them on in the same direction
    M2       = mean of x^2 over the harmful tokens
    tau      with mean of min(|x|, tau)^2 = budget, where M2 exceeds the budget; else the largest |x|
    eps      = max(1 - exp(-tau), floor),  eps_high = max(exp(tau) - 1, floor_high)
    loss_t   = -min(ratio_t A_t, clip(ratio_t, 1 - eps, 1 + eps_high) A_t)

The paper masks the largest x^2 until the mean of the rest meets the budget; holding them at tau (water-filling) meets
it exactly and depends on no order. tau is a number of the step: `M2Statistic` finds it before the first micro-batch.

Source:  M2PO, arXiv:2510.01161, the second-moment constraint. Units: log-probs and tau in nats, budget in nats^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relax.algorithms.statistic import ScoredSequence, StepValue, old_column

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions
    from relax.algorithms.policy_loss import PolicyLoss, PolicyTokens

THRESHOLD = "m2_threshold"  # column, nats


def m2po_objective(tokens: PolicyTokens, options: AlgorithmOptions) -> PolicyLoss:
    from relax.algorithms.policy_loss import clipped_policy_loss

    tau_T = tokens.columns[THRESHOLD]
    return clipped_policy_loss(
        tokens.logp_T,
        tokens.old_logp_T,
        tokens.advantage_T,
        eps_low=(1.0 - (-tau_T).exp()).clamp(min=options.m2po_eps_clip_floor),
        eps_high=(tau_T.exp() - 1.0).clamp(min=options.m2po_eps_clip_high_floor),
        dual_clip=options.eps_clip_c,
    )


class M2Statistic:
    """The threshold tau of one optimizer step."""

    column = THRESHOLD

    def __init__(self, budget: float, old: str | None) -> None:
        self._budget, self._old = budget, old

    def local(self, sequences: Sequence[ScoredSequence]) -> np.ndarray:
        """Squared log-ratios of the harmful tokens, float64 [H]."""
        squares = [np.zeros(0)]
        for sequence in sequences:
            if self._old is None:
                continue
            kept = lambda values: values[sequence.keep].astype(np.float64)  # noqa: B023, E731
            x_K = kept(sequence.log_probs) - kept(sequence.columns[self._old])
            squares.append(x_K[x_K * kept(sequence.columns["advantages"]) > 0] ** 2)
        return np.concatenate(squares)

    def value(self, joined: np.ndarray) -> StepValue:
        tau, count = threshold(joined, self._budget), float(joined.size)
        held = np.minimum(joined, tau**2)
        return StepValue(
            tau,
            {
                "m2_before": (math.fsum(joined.tolist()), count),
                "m2_after": (math.fsum(held.tolist()), count),
                "m2_threshold": (tau, 1.0),
            },
        )


def threshold(squares: np.ndarray, budget: float) -> float:
    """tau with mean(min(squares, tau^2)) = budget, or the root of the largest square where the mean is below it.

    With the k smallest left as they are and the n - k others held at tau^2: (sum of the k + (n - k) tau^2) / n.
    """
    if not squares.size:
        return 0.0
    ordered = np.sort(squares)
    below = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])  # sum of the squares before each place
    left = squares.size - np.arange(squares.size)
    level = (budget * squares.size - below) / left  # tau^2 if the squares from this place on are held
    fits = np.flatnonzero(level <= ordered)
    return math.sqrt(level[fits[0]] if fits.size else ordered[-1])


def m2po_statistic(options: AlgorithmOptions) -> M2Statistic:
    return M2Statistic(options.m2po_budget, old_column(options))
