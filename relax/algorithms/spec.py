# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What each `--advantage-estimator` means: its functions, its statistics and its rules. No torch here.

To add an algorithm, add one entry to `ALGOS` and the functions that its import paths name. The parser lies below this
layer and has the names as `ESTIMATORS` (relax/config/sections/algorithm.py); a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relax.utils.errors import ConfigError

Std = Literal["population", "sample"]
GroupOfOne = Literal["zero", "reward"]
KL_ESTIMATORS = ("k1", "k2", "k3", "low_var_kl")
OLD_LOG_PROBS = ("rollout", "old", "current")
REDUCTIONS = ("sample_mean", "token_mean", "token_sum_norm")
INVALID_REWARD_POLICIES = ("drop", "zero", "fail")
ZERO_VARIANCE_POLICIES = ("keep", "count_only", "drop")


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """One policy-gradient algorithm. Import paths are loaded by the role that needs them."""

    summary: str
    source: str  # paper and equation
    advantage: str  # rewards of whole groups -> one advantage per sample
    loss: str  # builds the LossFunction from AlgorithmOptions
    std: Std | None  # divisor n (population) or n - 1 (sample); None: never divided
    epsilon: float  # added to the standard deviation, in reward units
    group_of_one: GroupOfOne  # advantage of a sample alone in its group: 0, or its reward as it is
    min_group_size: int = 1  # smallest --n-samples-per-prompt that gives a signal or is allowed
    needs_whole_groups: bool = True  # advantages need every sample of a group at once
    needs_critic: bool = False
    roles: tuple[str, ...] = ("rollout", "actor", "advantages")  # keys that --resource must hold in async mode
    forbids_kl_in_reward: bool = False  # --kl-coef must be 0
    forbids_normalize_advantages: bool = False
    requires_normalize_advantages: bool = False
    requires_token_mean: bool = False  # --calculate-per-token-loss is a must
    requires_on_policy: bool = False  # --max-staleness must be 0


ALGOS: dict[str, AlgorithmSpec] = {
    # Dr.GRPO is this entry with --disable-grpo-std-normalization and --loss-reduction token_sum_norm.
    "grpo": AlgorithmSpec(
        summary="group-relative advantages with the clipped PPO objective",
        source="DeepSeekMath, arXiv:2402.03300 sec. 4.1; the paper leaves the kind of std open",
        advantage="relax.algorithms.advantages.group_advantages",
        loss="relax.algorithms.grpo.build_grpo_loss",
        std="sample",
        epsilon=1e-6,
        group_of_one="zero",
        forbids_kl_in_reward=True,
    ),
    # Place of the others: gspo, sapo, cispo, m2po, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, ppo.
}


def algorithm(name: str) -> AlgorithmSpec:
    """The spec of an `--advantage-estimator`; an unknown name lists the known ones."""
    if name not in ALGOS:
        raise ConfigError(f"--advantage-estimator {name!r} is unknown; known are {', '.join(sorted(ALGOS))}")
    return ALGOS[name]
