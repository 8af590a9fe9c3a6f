# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Corrections for tokens that another policy sampled than the one that is trained. No gradient flows here.

    w_t = exp(trainer_logp_t - engine_logp_t)
    tis     clamp(w_t, low, high)                truncated importance sampling
    icepop  w_t if low <= w_t <= high else 0     tokens on which the two disagree too much are left out
    opsm    0 for tokens with A < 0 in a sequence whose mean of old - new log-prob exceeds delta, else 1
    outlier 0 for all tokens of a sequence whose mean of |trainer - engine log-prob| exceeds the limit, else 1

Sources: TIS, Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025;
         IcePop, Ling team, "Small leak can sink a great ship", 2025; OPSM, DeepSeek-V3.2, arXiv:2512.02556 sec. 3.1.
Shapes:  T = response tokens, N = sequences. Units: log-probs and delta in nats, weights without a unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from relax.algorithms.policy_loss import safe_ratio


class ImportanceWeights(NamedTuple):
    weight_T: Tensor  # [T], multiplies the policy loss
    raw_T: Tensor  # [T], before any clamp
    clipped_T: Tensor  # [T] bool, the raw weight lay outside the range (measured before the clamp)


# A user's function: (trainer_logp_T, engine_logp_T, mask_T, *, low, high) -> ImportanceWeights
ImportanceFunction = Callable[..., ImportanceWeights]


def truncated_weights(
    trainer_logp_T: Tensor, engine_logp_T: Tensor, mask_T: Tensor, *, low: float, high: float
) -> ImportanceWeights:
    """TIS: the weight is held within low .. high."""
    raw_T, _ = safe_ratio(trainer_logp_T.detach(), engine_logp_T.detach())
    return ImportanceWeights(raw_T.clamp(low, high), raw_T, (raw_T < low) | (raw_T > high))


def masked_weights(
    trainer_logp_T: Tensor, engine_logp_T: Tensor, mask_T: Tensor, *, low: float, high: float
) -> ImportanceWeights:
    """IcePop: a weight outside low .. high becomes 0."""
    raw_T, _ = safe_ratio(trainer_logp_T.detach(), engine_logp_T.detach())
    outside_T = (raw_T < low) | (raw_T > high)
    return ImportanceWeights(torch.where(outside_T, torch.zeros_like(raw_T), raw_T), raw_T, outside_T)


MODES: dict[str, ImportanceFunction] = {"clamp": truncated_weights, "mask": masked_weights}


def off_policy_sequence_mask(
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    keep_T: Tensor,
    sequence_T: Tensor,
    num_sequences: int,
    *,
    delta: float,
) -> Tensor:
    """OPSM: float [T], 0 where the token is left out. The mean runs over the sequence's `keep_T` tokens."""
    gap_N = mean_by_sequence((old_logp_T - logp_T).detach(), keep_T, sequence_T, num_sequences)
    return 1.0 - ((gap_N > delta)[sequence_T] & (advantage_T < 0)).to(logp_T.dtype)


def outlier_sequences(
    trainer_logp_T: Tensor,
    engine_logp_T: Tensor,
    keep_T: Tensor,
    sequence_T: Tensor,
    num_sequences: int,
    *,
    limit: float,
) -> Tensor:
    """bool [N], True for a sequence that engine and trainer see too differently to learn from it.

    A few tokens that are far apart are for `masked_weights`; a sequence that is far apart as a whole was sampled from
    another prompt, other weights or a broken cache.
    """
    gap_T = (trainer_logp_T - engine_logp_T).detach().abs()
    return mean_by_sequence(gap_T, keep_T, sequence_T, num_sequences) > limit


def tokens_by_sequence(keep_T: Tensor, sequence_T: Tensor, num_sequences: int) -> Tensor:
    """int64 [N], the `keep_T` tokens of each sequence."""
    return sequence_T.new_zeros(num_sequences).index_add_(0, sequence_T, keep_T.to(sequence_T.dtype))


def mean_by_sequence(value_T: Tensor, keep_T: Tensor, sequence_T: Tensor, num_sequences: int) -> Tensor:
    """[N], over the `keep_T` tokens of each sequence; 0 for one that has none."""
    kept_T = torch.where(keep_T, value_T, torch.zeros_like(value_T))
    total_N = kept_T.new_zeros(num_sequences).index_add_(0, sequence_T, kept_T)
    return total_N / tokens_by_sequence(keep_T, sequence_T, num_sequences).clamp(min=1)
