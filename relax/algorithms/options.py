# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`AlgorithmOptions`: everything that decides the number a loss returns, plain and picklable. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relax.algorithms.rules import option_problems
from relax.algorithms.spec import (
    INVALID_REWARD_POLICIES,
    KL_ESTIMATORS,
    OLD_LOG_PROBS,
    REDUCTIONS,
    ZERO_VARIANCE_POLICIES,
    AlgorithmSpec,
    algorithm,
)
from relax.utils.errors import ConfigError
from relax.utils.imports import load_object

if TYPE_CHECKING:
    from relax.algorithms.loss import LossFunction
    from relax.algorithms.statistic import StepStatistic


def one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{flag} {value!r} is unknown; known are {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """Fields are the documented flags with underscores, except where a comment says otherwise."""

    advantage_estimator: str = "grpo"
    loss_type: str = "policy_loss"  # or custom_loss
    old_log_probs: str = "rollout"  # not a flag: which log-probs the ratio divides by, see OLD_LOG_PROBS
    loss_reduction: str | None = None  # token_mean is --calculate-per-token-loss; None: what the algorithm means
    rollout_max_response_len: int | None = None  # tokens; the divisor of token_sum_norm
    disable_grpo_std_normalization: bool = False
    disable_rewards_normalization: bool = False
    normalize_advantages: bool | None = None  # None: where the algorithm requires it
    disable_compute_advantages_and_returns: bool = False
    gamma: float = 1.0  # discount of a trained token
    lambd: float = 1.0  # decay of later errors in an advantage of PPO
    invalid_reward: str = "drop"  # what a None, NaN or failed reward does to its sample
    zero_variance: str = "keep"  # what happens to groups whose rewards are all equal
    eps_clip: float = 0.2
    eps_clip_high: float | None = None  # None: eps_clip
    eps_clip_c: float | None = None  # dual clip, > 1
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    m2po_budget: float = 0.01  # nats^2
    m2po_eps_clip_floor: float = 0.3
    m2po_eps_clip_high_floor: float = 0.5
    kl_coef: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    kl_loss_type: str = "k1"
    use_unbiased_kl: bool = False
    entropy_coef: float = 0.0
    log_entropy: bool = True  # not a flag: compute the entropy for the log even when its coefficient is 0
    use_tis: bool = False
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0
    tis_mode: str = "clamp"  # clamp (TIS) or mask (icepop)
    custom_tis_function_path: str | None = None
    get_mismatch_metrics: bool = False
    use_opsm: bool = False
    opsm_delta: float = 1e-4
    logprob_outlier_limit: float | None = None  # nats; None masks no sequence
    custom_advantage_function_path: str | None = None
    custom_loss_function_path: str | None = None
    custom_pg_loss_reducer_function_path: str | None = None
    args: Any = None  # not a flag: what functions of the user get, every flag of the run

    def __post_init__(self) -> None:
        spec = self.spec
        if self.loss_reduction is None:
            object.__setattr__(self, "loss_reduction", spec.reduction or "sample_mean")
        if self.normalize_advantages is None:
            object.__setattr__(self, "normalize_advantages", spec.requires_normalize_advantages)
        one_of("--loss-reduction", str(self.loss_reduction), REDUCTIONS)
        one_of("--kl-loss-type", self.kl_loss_type, KL_ESTIMATORS)
        one_of("old_log_probs", self.old_log_probs, OLD_LOG_PROBS)
        one_of("--invalid-reward-policy", self.invalid_reward, INVALID_REWARD_POLICIES)
        one_of("--zero-variance-policy", self.zero_variance, ZERO_VARIANCE_POLICIES)
        one_of("--tis-mode", self.tis_mode, ("clamp", "mask"))
        self._check_numbers()
        self._check_combinations()

    def _check_numbers(self) -> None:
        if not 0.0 < self.eps_clip < 1.0:
            raise ConfigError(f"--eps-clip must be between 0 and 1, got {self.eps_clip}")
        if self.eps_clip_high is not None and self.eps_clip_high <= 0.0:
            raise ConfigError(f"--eps-clip-high must be > 0, got {self.eps_clip_high}")
        if self.eps_clip_c is not None and self.eps_clip_c <= 1.0:
            raise ConfigError(f"--eps-clip-c must be > 1, got {self.eps_clip_c}; leave it out for no dual clip")
        if not 0.0 < self.gamma <= 1.0:
            raise ConfigError(f"--gamma must be > 0 and <= 1, got {self.gamma}")
        for name in ("sapo_tau_pos", "sapo_tau_neg", "m2po_budget"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"--{name.replace('_', '-')} must be > 0, got {getattr(self, name)}")
        if not 0.0 <= self.tis_clip_low <= self.tis_clip:
            raise ConfigError(f"--tis-clip-low {self.tis_clip_low} must lie in 0 .. --tis-clip ({self.tis_clip})")

    def _check_combinations(self) -> None:
        problems = list(option_problems(self))
        if problems:
            raise ConfigError("\n".join(problems))
        if self.use_tis and self.old_log_probs == "rollout":
            raise ConfigError(
                "--use-tis corrects trainer log-probs by the engine's; with --use-rollout-logprobs "
                "both are the engine's, so drop one of the two flags"
            )
        if self.loss_reduction == "token_sum_norm" and not self.rollout_max_response_len:
            raise ConfigError("--loss-reduction token_sum_norm divides by --rollout-max-response-len: set it")
        if self.get_mismatch_metrics and self.custom_tis_function_path is None:
            raise ConfigError("--get-mismatch-metrics needs --custom-tis-function-path")
        if self.custom_tis_function_path is not None and not (self.use_tis or self.get_mismatch_metrics):
            raise ConfigError(
                "--custom-tis-function-path has no effect alone: add --use-tis to correct, "
                "or --get-mismatch-metrics to measure only"
            )

    @property
    def spec(self) -> AlgorithmSpec:
        return algorithm(self.advantage_estimator)

    @property
    def clip_high(self) -> float:
        return self.eps_clip if self.eps_clip_high is None else self.eps_clip_high

    @property
    def columns(self) -> frozenset[str]:
        """Response-aligned columns that the loss reads besides its own log-probs."""
        names = {"loss_weight", "rollout_logprobs"}
        if not self.disable_compute_advantages_and_returns:
            names.add("advantages")
        if self.custom_pg_loss_reducer_function_path is not None:
            names.add("policy_weight")
        if self.old_log_probs == "old":
            names.add("old_logprobs")
        if self.use_kl_loss or self.kl_coef:
            names.add("ref_logprobs")
        return frozenset(names)

    @property
    def advantage_columns(self) -> tuple[str, ...]:
        """Response-aligned columns that advantages are computed from, besides the loss mask."""
        engine = bool(self.kl_coef) or self.custom_advantage_function_path is not None
        critic = ("values", "weight_version") * self.needs_critic
        return ("rollout_logprobs",) * engine + ("ref_logprobs",) * bool(self.kl_coef) + critic

    @property
    def needs_critic(self) -> bool:
        """Advantages are made of a critic's values."""
        return "critic" in self.spec.needs_roles

    def advantage_rules(self) -> dict[str, Any]:
        """Keyword arguments of `group_advantages`."""
        plain = self.disable_grpo_std_normalization
        return {
            "std": None if plain else self.spec.std,
            "epsilon": self.spec.epsilon,
            "group_of_one": self.spec.group_of_one,
            "invalid": self.invalid_reward,
            "baseline": "none" if self.disable_rewards_normalization else self.spec.baseline,
        }

    def function(self, path: str) -> Any:
        """An object that the algorithm's spec names."""
        return load_object(path, flag=f"--advantage-estimator {self.advantage_estimator}")


def build_loss(options: AlgorithmOptions) -> LossFunction:
    """The loss that `options` describe. Imports torch."""
    from relax.algorithms.policy_gradient import PolicyGradientLoss

    return PolicyGradientLoss(options)


def build_statistic(options: AlgorithmOptions) -> StepStatistic | None:
    """What the algorithm needs to know of a whole optimizer step before it begins, if anything."""
    if options.loss_type != "policy_loss" or options.spec.statistic is None:
        return None
    return options.function(options.spec.statistic)(options)
