# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The policy-gradient estimator and its loss. Names, options and rules of the estimators come from `ALGOS`."""

from __future__ import annotations

from dataclasses import dataclass

from relax.algorithms.spec import ALGOS
from relax.config.flags import Section, above, above_up_to, at_least, flag, import_path

ESTIMATORS = tuple(ALGOS)


def _unit(value: float) -> str | None:
    return None if 0 <= value <= 1 else "must be >= 0 and <= 1"


def _share(value: float) -> str | None:
    return None if 0 < value < 1 else "must be > 0 and < 1"


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Section):
    """Advantages, clipping, KL and corrections for stale samples."""

    advantage_estimator: str = flag("grpo", choices=ESTIMATORS, help="How rewards become advantages.")
    loss_type: str = flag(
        "policy_loss",
        choices=("policy_loss", "custom_loss", "sft", "dpo", "reward_model", "sft_loss", "sft-loss"),
        help="What the actor learns from: sampled responses and their rewards (custom_loss: by a function of yours), "
        "rows of a file (sft; sft_loss and sft-loss are old names), or pairs of them (dpo, reward_model).",
    )
    eps_clip: float = flag(0.2, help="Lower clip range of the ratio: 1 - eps.", check=_share)
    eps_clip_high: float | None = flag(
        None, help="Upper clip range of the ratio: 1 + eps.", check=above(0), shown="eps_clip"
    )
    eps_clip_c: float | None = flag(None, help="Dual clip: bound of the loss for negative advantages.", check=above(1))
    sapo_tau_pos: float = flag(1.0, help="Steepness of SAPO's gate where the advantage is positive.", check=above(0))
    sapo_tau_neg: float = flag(1.05, help="Steepness of SAPO's gate elsewhere.", check=above(0))
    m2po_budget: float = flag(
        0.01, help="Mean square of a step's harmful log-ratios that M2PO allows, in nats^2.", check=above(0)
    )
    m2po_eps_clip_floor: float = flag(0.3, help="M2PO's lower clip range is at least this.", check=_share)
    m2po_eps_clip_high_floor: float = flag(0.5, help="M2PO's upper clip range is at least this.", check=above(0))
    gamma: float = flag(1.0, help="Discount of a reward for each trained token before it.", check=above_up_to(0, 1))
    kl_coef: float = flag(0.0, help="Weight of the KL to the reference inside the reward.", check=at_least(0))
    use_kl_loss: bool = flag(False, help="Add the KL to the reference to the loss.")
    kl_loss_coef: float = flag(0.0, help="Weight of that KL.", check=at_least(0))
    kl_loss_type: str = flag("k1", choices=("k1", "k2", "k3", "low_var_kl"), help="Estimator of the KL.")
    use_unbiased_kl: bool = flag(False, help="Weight the KL estimate by the ratio, so that its gradient is unbiased.")
    ref_update_interval: int | None = flag(
        None, help="Rollouts after which the reference takes the actor's weights.", check=at_least(1), shown="never"
    )
    lambd: float = flag(
        1.0, help="Decay of later errors in a PPO advantage; 1 takes whole returns, 0 one step.", check=_unit
    )
    entropy_coef: float = flag(0.0, help="Weight of the entropy bonus.")
    disable_grpo_std_normalization: bool = flag(
        False, help="Do not divide advantages by the group's standard deviation."
    )
    disable_rewards_normalization: bool = flag(False, help="Take rewards as advantages, without the group's mean.")
    normalize_advantages: bool | None = flag(
        None,
        help="Bring the advantages of a rollout to mean 0 and variance 1 over its trained tokens.",
        shown="on where the estimator requires it",
    )
    disable_compute_advantages_and_returns: bool = flag(
        False, help="Compute no advantages: --loss-type custom_loss trains with what the function reads itself."
    )
    custom_advantage_function_path: str | None = flag(
        None, help="Function that makes the advantages of a rollout.", check=import_path
    )
    custom_loss_function_path: str | None = flag(
        None, help="Function of --loss-type custom_loss: what each token adds.", check=import_path
    )
    custom_pg_loss_reducer_function_path: str | None = flag(
        None, help="Function that weighs the tokens of a step in the policy loss.", check=import_path
    )
    calculate_per_token_loss: bool = flag(
        False, help="Average the loss over all tokens of a step instead of over samples."
    )
    loss_reduction: str | None = flag(
        None,
        choices=("sample_mean", "token_mean", "token_sum_norm"),
        help="What the loss of a step is averaged over; token_sum_norm divides by --rollout-max-response-len.",
        shown="token_mean with --calculate-per-token-loss, else what the estimator means, else sample_mean",
    )
    invalid_reward_policy: str = flag(
        "drop", choices=("drop", "zero", "fail"), help="What a missing, NaN or failed reward does to its sample."
    )
    zero_variance_policy: str = flag(
        "keep", choices=("keep", "count_only", "drop"), help="What happens to groups whose rewards are all equal."
    )
    use_tis: bool = flag(False, help="Weight tokens by the truncated ratio of trainer to engine probabilities.")
    tis_clip: float = flag(2.0, help="Upper bound of that weight.", check=above(0))
    tis_clip_low: float = flag(0.0, help="Lower bound of that weight.", check=at_least(0))
    tis_mode: str = flag(
        "clamp", choices=("clamp", "mask"), help="Weights outside the bounds are clamped, or set to 0 (icepop)."
    )
    custom_tis_function_path: str | None = flag(None, help="Function that computes the weights.", check=import_path)
    get_mismatch_metrics: bool = flag(False, help="Only measure the weights of --custom-tis-function-path.")
    use_opsm: bool = flag(False, help="Mask sequences of negative advantage that left the sampling policy.")
    opsm_delta: float = flag(
        1e-4, help="Mean log-ratio of a sequence from which --use-opsm masks it.", check=at_least(0)
    )
    logprob_outlier_limit: float | None = flag(
        None,
        help="Nats by which a response's log-probs may differ from the engine's, on average over its trained tokens; "
        "one that differs more trains nothing.",
        check=above(0),
        shown="no limit",
    )
    use_rollout_logprobs: bool | None = flag(
        None,
        help="Take the engines' log-probs as the old policy.",
        shown="on when samples may be stale and nothing else corrects it",
    )
