# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The only place of averaging: token weights and the divisor of one optimizer step.

    loss = sum over tokens of weight_t * loss_t, divided once by the divisor of the whole step

    mode            weight of a loss token        divisor                       flag
    sample_mean     1 / loss tokens of its sample counted samples               (default)
    token_mean      1                             loss tokens of counted ones   --calculate-per-token-loss
    token_sum_norm  1 / max_response_len          counted samples               --loss-reduction token_sum_norm

A sample is counted when it is kept and has at least one loss token, so a fully masked, removed or padding sample
changes neither the sum nor the divisor. Everything is computed from the loss masks of the whole step before its first
backward pass, so it does not depend on how the step is cut into micro-batches, streamed parts or ranks. The logged
value of an objective term is its sum over the step divided by the same divisor.

Sources: mean of sample means, GRPO, arXiv:2402.03300; token mean, DAPO, arXiv:2503.14476, token-level loss; constant
length, Dr.GRPO, arXiv:2503.20783.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relax.algorithms.spec import REDUCTIONS

if TYPE_CHECKING:
    from torch import Tensor

GRADIENT_SQUARE = "gradient_square/"  # + a term: the sum of squares of its derivatives by log-probs


class StepReduction(NamedTuple):
    """Weights in the order of the samples given, and what the summed gradient is divided by."""

    weights: list[np.ndarray]  # [R] each: the column `loss_weight`
    divisor: float  # > 0; 1.0 when nothing is counted
    num_samples: int  # counted samples
    num_tokens: int  # their loss tokens
    counted: int  # of the two what the divisor counts; the counts of a step's parts add up to that of the step


def step_reduction(
    loss_masks: Sequence[np.ndarray],
    *,
    mode: str = "sample_mean",
    keep: Sequence[bool] | None = None,
    silent: Sequence[bool] | None = None,
    max_response_len: int | None = None,
    dtype: type = np.float32,
) -> StepReduction:
    """Weights and divisor of one optimizer step, given the loss masks of all its samples on all ranks.

    keep    False: the sample has zero weight and is not counted (removed, failed, invalid reward, dropped group).
    silent  True: the sample has zero weight but is counted, so it still dilutes the others' mean.
    """
    if mode not in REDUCTIONS:
        raise ValueError(f"unknown reduction {mode!r}; known are {', '.join(REDUCTIONS)}")
    if mode == "token_sum_norm" and not max_response_len:
        raise ValueError("reduction token_sum_norm needs max_response_len > 0")
    weights, num_samples, num_tokens = [], 0, 0
    for place, loss_mask in enumerate(loss_masks):
        mask_R = np.asarray(loss_mask) > 0
        tokens = int(mask_R.sum())
        counted = tokens > 0 and (keep is None or bool(keep[place]))
        num_samples += counted
        num_tokens += tokens * counted
        weight = {
            "sample_mean": 1.0 / max(tokens, 1),
            "token_mean": 1.0,
            "token_sum_norm": 1.0 / (max_response_len or 1),
        }
        heard = counted and not (silent is not None and silent[place])
        weights.append((mask_R * (weight[mode] if heard else 0.0)).astype(dtype))
    counted = num_tokens if mode == "token_mean" else num_samples
    return StepReduction(weights, divisor_of(counted), num_samples, num_tokens, counted)


def divisor_of(counted: float) -> float:
    """What the gradient sum of a step is divided by; where nothing is counted it is 0, so 1 does no harm."""
    return float(counted) or 1.0


def masked(value_T: Tensor, keep_T: Tensor) -> Tensor:
    """`value_T` where the bool `keep_T` holds, else 0; what stands elsewhere, NaN included, has no effect."""
    return value_T.where(keep_T, value_T.new_zeros(()))


def effective_sample_fraction(mean_weight: float, mean_square_weight: float) -> float:
    """Kish's effective sample size over the number of tokens, (E w)^2 / E w^2, from metrics of the loss."""
    return mean_weight**2 / mean_square_weight if mean_square_weight > 0.0 else 0.0


def gradient_norms(sums: Mapping[str, float], divisor: float) -> dict[str, float]:
    """{term: norm of its derivatives by log-probs} of an optimizer step, from what its loss summed and its divisor."""
    names = [name for name in sums if name.startswith(GRADIENT_SQUARE)]
    return {name.removeprefix(GRADIENT_SQUARE): math.sqrt(sums[name]) / divisor for name in names}
