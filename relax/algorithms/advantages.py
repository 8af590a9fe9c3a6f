# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Group-relative advantages: rewards of whole groups in, one advantage per sample out.

    group_mean       A_i = (r_i - mean_G) / (std_G + epsilon), or r_i - mean_G without a standard deviation
    leave_one_out    A_i = r_i - mean of the others = n / (n - 1) * (r_i - mean_G)
    none             A_i = r_i

Sources: GRPO, DeepSeekMath, arXiv:2402.03300 sec. 4.1 (outcome supervision); RLOO, arXiv:2402.14740 sec. 2.2.
Shapes:  S = samples, in any order; groups are told by id and may have different sizes.
Units:   rewards and epsilon in reward, A without a unit (in reward when `std` is None).

Sums are exactly rounded (`math.fsum`), so the result does not depend on the order of the samples by even one bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relax.algorithms.spec import Baseline, GroupOfOne, Std

if TYPE_CHECKING:
    from relax.algorithms.options import AlgorithmOptions


class GroupAdvantages(NamedTuple):
    """Results in the order of the samples given."""

    advantage_S: np.ndarray  # float64 [S], 0.0 where invalid
    valid_S: np.ndarray  # bool [S], False: the sample has no usable reward and must get no loss weight
    informative_S: np.ndarray  # bool [S], False: its group's rewards are all equal, so no advantage can differ from 0


def group_advantages(
    rewards: Sequence[float | None] | np.ndarray,
    groups: Sequence[int] | np.ndarray,
    *,
    std: Std | None,
    epsilon: float = 1e-6,
    group_of_one: GroupOfOne = "zero",
    invalid: str = "drop",
    baseline: Baseline = "group_mean",
) -> GroupAdvantages:
    """One advantage per sample.

    std           "population" divides by n, "sample" by n - 1, None leaves the difference in reward units.
    baseline      what is taken off a reward; with "none" (--disable-rewards-normalization) it stays as it is.
    equal rewards advantage exactly 0 with a baseline, whatever the rounding of the mean.
    group of one  no baseline exists: "zero" gives 0, "reward" gives the reward itself.
    invalid       a None, NaN or infinite reward: "drop" leaves it out of the group's statistics with advantage 0 and
                  `valid` False, "zero" takes it as 0.0, "fail" raises ValueError.
    """
    reward_S, valid_S = _usable(rewards, invalid)
    group_S = np.asarray(groups, np.int64)
    if group_S.shape != reward_S.shape:
        raise ValueError(f"{reward_S.size} rewards for {group_S.size} group ids")
    advantage_S, informative_S = np.zeros_like(reward_S), np.zeros(reward_S.shape, bool)
    for group in np.unique(group_S):
        member_S = group_S == group
        place_N = np.flatnonzero(member_S & valid_S)
        if not place_N.size:
            continue
        reward_N = reward_S[place_N]
        keeps_reward = baseline == "none" or (reward_N.size == 1 and group_of_one == "reward")
        informative_S[member_S] = keeps_reward or reward_N.max() > reward_N.min()
        advantage_S[place_N] = reward_N if keeps_reward else _one_group(reward_N, std, epsilon, baseline)
    return GroupAdvantages(advantage_S, valid_S, informative_S)


def _usable(rewards: Sequence[float | None] | np.ndarray, invalid: str) -> tuple[np.ndarray, np.ndarray]:
    """Rewards as float64 with invalid ones set to 0, and which may be used."""
    reward_S = np.asarray([math.nan if r is None else float(r) for r in rewards], np.float64)
    finite_S = np.isfinite(reward_S)
    if invalid == "fail" and not finite_S.all():
        place = int(np.flatnonzero(~finite_S)[0])
        raise ValueError(f"reward {rewards[place]!r} at place {place} is not a finite number")
    if invalid not in ("drop", "zero", "fail"):
        raise ValueError(f"unknown policy for invalid rewards {invalid!r}; known are drop, zero, fail")
    reward_S = np.where(finite_S, reward_S, 0.0)
    return reward_S, (np.ones_like(finite_S) if invalid == "zero" else finite_S)


def _one_group(reward_N: np.ndarray, std: Std | None, epsilon: float, baseline: Baseline) -> np.ndarray:
    if reward_N.max() == reward_N.min():  # a group of one among them
        return np.zeros_like(reward_N)
    centred_N = reward_N - math.fsum(reward_N.tolist()) / reward_N.size
    if baseline == "leave_one_out":
        centred_N = centred_N * (reward_N.size / (reward_N.size - 1))
    if std is None:
        return centred_N
    divisor = reward_N.size - (1 if std == "sample" else 0)
    return centred_N / (math.sqrt(math.fsum((centred_N**2).tolist()) / divisor) + epsilon)


class SampleUse(NamedTuple):
    """What `reduce.step_reduction` takes as `keep` and `silent`."""

    keep_S: np.ndarray  # bool [S]
    silent_S: np.ndarray  # bool [S]


def sample_use(result: GroupAdvantages, removed: Sequence[bool] | np.ndarray, *, zero_variance: str) -> SampleUse:
    """Which samples train and which count.

    A removed sample (a filter's word) and one without a usable reward have no weight and do not count. Samples of a
    zero-variance group have advantage 0, and then
      keep        they count, and a KL or entropy term still acts on them,
      count_only  they count, and nothing acts on them,
      drop        they do not count, and nothing acts on them.
    """
    keep_S = result.valid_S & ~np.asarray(removed, bool)
    if zero_variance == "drop":
        return SampleUse(keep_S & result.informative_S, np.zeros_like(keep_S))
    if zero_variance not in ("keep", "count_only"):
        raise ValueError(
            f"unknown policy for zero-variance groups {zero_variance!r}; known are keep, count_only, drop"
        )
    silent_S = ~result.informative_S if zero_variance == "count_only" else np.zeros_like(keep_S)
    return SampleUse(keep_S, silent_S)


class Outcomes(NamedTuple):
    """A rollout, or whole groups of it, after the group's statistics; S samples in one order everywhere."""

    score_S: np.ndarray  # float64 [S], from `group_advantages`; 0.0 for a sample without a usable reward
    masks: Sequence[np.ndarray]  # loss mask [R] of each sample
    columns: Mapping[str, Sequence[np.ndarray]]  # response-aligned, [R] of each sample: rollout_logprobs, ...


class TokenAdvantages(NamedTuple):
    advantages: list[np.ndarray]  # [R] of each sample
    returns: list[np.ndarray] | None = None  # the same, what a critic learns


def broadcast(outcomes: Outcomes, options: AlgorithmOptions) -> TokenAdvantages:
    """Every response token of a sample gets the sample's score."""
    return TokenAdvantages(
        [np.full(len(mask), score) for score, mask in zip(outcomes.score_S, outcomes.masks, strict=True)]
    )
