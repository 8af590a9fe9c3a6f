# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What each `--advantage-estimator` means: its functions, its statistics and its rules. Plain data, no torch.

    rewards -> baseline, std        one number a sample          `advantages.group_advantages`
            -> advantage            one number a token           the function that `advantage` names
            -> normalization        over the whole rollout       `normalization.py`, with --normalize-advantages
            -> policy               the per-token objective      the function that `policy` names
            -> reduction            the only place of averaging  `reduce.py`

To add an algorithm, add one entry to `ALGOS` and the functions that its import paths name (docs/algorithms.md). The
flags, their choices and their refusals follow from the entry; `rules.py` turns its fields into texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relax.utils.errors import ConfigError

Baseline = Literal["group_mean", "leave_one_out", "none"]
Std = Literal["population", "sample"]
GroupOfOne = Literal["zero", "reward"]
Normalization = Literal["whiten", "token_global"]
KL_ESTIMATORS = ("k1", "k2", "k3", "low_var_kl")
OLD_LOG_PROBS = ("rollout", "old", "current")
REDUCTIONS = ("sample_mean", "token_mean", "token_sum_norm")
INVALID_REWARD_POLICIES = ("drop", "zero", "fail")
ZERO_VARIANCE_POLICIES = ("keep", "count_only", "drop")

BROADCAST = "relax.algorithms.advantages.broadcast"
CLIPPED = "relax.algorithms.policy_loss.clipped_objective"
CLIP_OPTIONS = frozenset({"eps_clip", "eps_clip_high", "eps_clip_c"})
GROUP_OPTIONS = frozenset({"disable_grpo_std_normalization"})
M2PO_OPTIONS = frozenset({"m2po_budget", "m2po_eps_clip_floor", "m2po_eps_clip_high_floor"})


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """One policy-gradient algorithm. Import paths are loaded by the role that needs them."""

    summary: str
    formula: str  # of the per-token objective, as docs/algorithms.md shows it
    source: str  # paper, and what of it
    advantage: str = BROADCAST  # (advantages.Outcomes, AlgorithmOptions) -> advantages.TokenAdvantages
    policy: str = CLIPPED  # (policy_loss.PolicyTokens, AlgorithmOptions) -> policy_loss.PolicyLoss
    statistic: str | None = None  # builds a `statistic.StepStatistic`: a number of the whole step that `policy` reads

    # the group's statistics
    baseline: Baseline = "group_mean"
    std: Std | None = None  # divisor n (population) or n - 1 (sample); None: never divided
    epsilon: float = 1e-6  # added to the standard deviation, in reward units
    group_of_one: GroupOfOne = "zero"  # advantage of a sample alone in its group: 0, or its reward as it is
    min_group_size: int = 1  # smallest --n-samples-per-prompt

    # rules; `rules.py` has their texts
    options: frozenset[str] = frozenset()  # flags that only some algorithms read, and this one does
    needs_roles: tuple[str, ...] = ()  # keys that --resource must hold besides actor, rollout and advantages
    reduction: str | None = None  # the only --loss-reduction that the formula means
    normalization: Normalization = "whiten"  # what --normalize-advantages does
    requires_normalize_advantages: bool = False
    forbids_normalize_advantages: bool = False
    kl_in_reward: Literal["forbidden", "allowed", "required"] = "forbidden"  # --kl-coef
    kl_loss: Literal["allowed", "forbidden", "k2"] = "allowed"  # "k2": a must, with that estimator
    requires_on_policy: bool = False  # --max-staleness 0, one optimizer step a rollout, no interrupted responses


ALGOS: dict[str, AlgorithmSpec] = {
    "grpo": AlgorithmSpec(
        summary="group-relative advantages with the clipped PPO objective",
        formula="-min(ratio A, clip(ratio, 1 - eps, 1 + eps_high) A)",
        source="DeepSeekMath, arXiv:2402.03300, outcome supervision; the paper leaves the kind of std open",
        std="sample",
        options=CLIP_OPTIONS | GROUP_OPTIONS,
    ),
    "dr_grpo": AlgorithmSpec(
        summary="GRPO without the two biases: no division by the group's std, none by the response's length",
        formula="as grpo; the sum over tokens is divided by --rollout-max-response-len",
        source="Dr. GRPO, arXiv:2503.20783, the unbiased objective",
        options=CLIP_OPTIONS,
        reduction="token_sum_norm",
        forbids_normalize_advantages=True,
    ),
    "gspo": AlgorithmSpec(
        summary="one ratio a sequence, the geometric mean of its tokens' ratios, clipped as a whole",
        formula="as grpo with ratio_t = sg(s) exp(logp_t - sg(logp_t)), s = exp(mean_t(logp_t - old_logp_t))",
        source="GSPO, arXiv:2507.18071, the sequence objective in its token form (GSPO-token)",
        policy="relax.algorithms.gspo.gspo_objective",
        std="sample",
        options=CLIP_OPTIONS | GROUP_OPTIONS,
    ),
    "sapo": AlgorithmSpec(
        summary="a soft gate in place of the clip: gradients fade as the ratio leaves 1",
        formula="-(4 / tau) sigmoid(tau (ratio - 1)) A, tau by the sign of A",
        source="SAPO, arXiv:2511.20347, the soft gate with a temperature for each sign",
        policy="relax.algorithms.sapo.sapo_objective",
        std="sample",
        options=GROUP_OPTIONS | {"sapo_tau_pos", "sapo_tau_neg"},
    ),
    "cispo": AlgorithmSpec(
        summary="the ratio is a bounded weight without gradient, so no token loses its gradient",
        formula="-sg(c) A logp, c = min(ratio, 1 + eps_high) where A >= 0, max(ratio, 1 - eps) where A < 0",
        source="MiniMax-M1, arXiv:2506.13585, CISPO, bounded on the side that the sign of A makes unstable",
        policy="relax.algorithms.cispo.cispo_objective",
        std="sample",
        options=CLIP_OPTIONS | GROUP_OPTIONS,
    ),
    "m2po": AlgorithmSpec(
        summary="the clip follows from a budget for the second moment of the step's harmful log-ratios",
        formula="as grpo with eps = max(1 - exp(-tau), floor), eps_high = max(exp(tau) - 1, floor)",
        source="M2PO, arXiv:2510.01161, second moment bounded, with the bound of the log-ratio in place of its mask",
        policy="relax.algorithms.m2po.m2po_objective",
        statistic="relax.algorithms.m2po.m2po_statistic",
        std="sample",
        options=GROUP_OPTIONS | M2PO_OPTIONS | {"eps_clip_c"},
    ),
    "rloo": AlgorithmSpec(
        summary="REINFORCE whose baseline is the mean reward of the other samples of the prompt",
        formula="-A logp, A = r - mean of the others = n / (n - 1) (r - mean)",
        source="RLOO, arXiv:2402.14740, the leave-one-out baseline",
        policy="relax.algorithms.policy_loss.score_function_objective",
        baseline="leave_one_out",
        min_group_size=2,
        reduction="token_mean",
        forbids_normalize_advantages=True,
        requires_on_policy=True,
    ),
    "reinforce_plus_plus": AlgorithmSpec(
        summary="REINFORCE with the KL in the token reward and advantages normalised over the whole rollout",
        formula="as grpo, A_t = normalised sum_{k >= t} gamma^(k - t) (r [k last] - kl_coef (logp_k - ref_logp_k))",
        source="REINFORCE++, arXiv:2501.03262, token rewards with the KL and global normalisation",
        advantage="relax.algorithms.returns.discounted_returns",
        baseline="none",
        group_of_one="reward",
        options=CLIP_OPTIONS | {"gamma"},
        normalization="token_global",
        requires_normalize_advantages=True,
        kl_in_reward="required",
        kl_loss="forbidden",
    ),
    "reinforce_plus_plus_baseline": AlgorithmSpec(
        summary="REINFORCE++ with the group's mean as baseline and the KL as a loss",
        formula="as grpo, A = normalised (r - mean r); plus kl_loss_coef (logp - ref_logp)^2 / 2",
        source="REINFORCE++, arXiv:2501.03262, the variant with a baseline",
        options=CLIP_OPTIONS,
        normalization="token_global",
        min_group_size=2,
        requires_normalize_advantages=True,
        kl_loss="k2",
    ),
    "ppo": AlgorithmSpec(
        summary="advantages over tokens from the values of a critic of its own",
        formula="as grpo, A_t = sum_{k >= t} (gamma lambd)^(k - t) (r_k + gamma V_{k+1} - V_k)",
        source="PPO, arXiv:1707.06347, clipped surrogate and GAE; over tokens, InstructGPT, arXiv:2203.02155",
        advantage="relax.algorithms.gae.gae_advantages",
        baseline="none",
        group_of_one="reward",
        options=CLIP_OPTIONS | {"gamma", "lambd"},
        needs_roles=("critic",),
        kl_in_reward="allowed",
    ),
}

# flag of `AlgorithmSpec.options` -> the algorithms that read it
READERS: dict[str, tuple[str, ...]] = {
    option: tuple(name for name, spec in ALGOS.items() if option in spec.options)
    for option in sorted({option for spec in ALGOS.values() for option in spec.options})
}


def algorithm(name: str) -> AlgorithmSpec:
    """The spec of an `--advantage-estimator`; an unknown name lists the known ones."""
    if name not in ALGOS:
        raise ConfigError(f"--advantage-estimator {name!r} is unknown; known are {', '.join(sorted(ALGOS))}")
    return ALGOS[name]
