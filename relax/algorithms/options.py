# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`AlgorithmOptions`: everything that decides the number a loss returns, plain and picklable. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


def one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{flag} {value!r} is unknown; known are {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """Fields are the documented flags with underscores, except where a comment says otherwise."""

    advantage_estimator: str = "grpo"
    old_log_probs: str = "rollout"  # not a flag: which log-probs the ratio divides by, see OLD_LOG_PROBS
    loss_reduction: str = "sample_mean"  # token_mean is --calculate-per-token-loss
    rollout_max_response_len: int | None = None  # tokens; the divisor of token_sum_norm
    disable_grpo_std_normalization: bool = False
    disable_rewards_normalization: bool = False
    invalid_reward: str = "drop"  # what a None, NaN or failed reward does to its sample
    zero_variance: str = "keep"  # what happens to groups whose rewards are all equal
    eps_clip: float = 0.2
    eps_clip_high: float | None = None  # None: eps_clip
    eps_clip_c: float | None = None  # dual clip, > 1
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

    def __post_init__(self) -> None:
        spec = self.spec
        one_of("--loss-reduction", self.loss_reduction, REDUCTIONS)
        one_of("--kl-loss-type", self.kl_loss_type, KL_ESTIMATORS)
        one_of("old_log_probs", self.old_log_probs, OLD_LOG_PROBS)
        one_of("--invalid-reward-policy", self.invalid_reward, INVALID_REWARD_POLICIES)
        one_of("--zero-variance-policy", self.zero_variance, ZERO_VARIANCE_POLICIES)
        one_of("--tis-mode", self.tis_mode, ("clamp", "mask"))
        self._check_numbers()
        self._check_combinations(spec)

    def _check_numbers(self) -> None:
        if not 0.0 < self.eps_clip < 1.0:
            raise ConfigError(f"--eps-clip must be between 0 and 1, got {self.eps_clip}")
        if self.eps_clip_high is not None and self.eps_clip_high <= 0.0:
            raise ConfigError(f"--eps-clip-high must be > 0, got {self.eps_clip_high}")
        if self.eps_clip_c is not None and self.eps_clip_c <= 1.0:
            raise ConfigError(f"--eps-clip-c must be > 1, got {self.eps_clip_c}; leave it out for no dual clip")
        if not 0.0 <= self.tis_clip_low <= self.tis_clip:
            raise ConfigError(f"--tis-clip-low {self.tis_clip_low} must lie in 0 .. --tis-clip ({self.tis_clip})")

    def _check_combinations(self, spec: AlgorithmSpec) -> None:
        name = self.advantage_estimator
        if self.kl_coef and self.kl_loss_coef:
            raise ConfigError(
                "--kl-coef and --kl-loss-coef are both set; keep one: the KL is in the reward or the loss"
            )
        if spec.forbids_kl_in_reward and self.kl_coef:
            raise ConfigError(
                f"--kl-coef {self.kl_coef} has no effect with --advantage-estimator {name}: "
                "its KL is a loss term, so use --use-kl-loss --kl-loss-coef"
            )
        if self.kl_loss_coef and not self.use_kl_loss:
            raise ConfigError(f"--kl-loss-coef {self.kl_loss_coef} has no effect without --use-kl-loss")
        if spec.requires_token_mean and self.loss_reduction != "token_mean":
            raise ConfigError(f"--advantage-estimator {name} needs --calculate-per-token-loss")
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
        names = {"advantages", "loss_weight", "rollout_logprobs"}
        if self.old_log_probs == "old":
            names.add("old_logprobs")
        if self.use_kl_loss:
            names.add("ref_logprobs")
        return frozenset(names)

    def advantage_rules(self) -> dict[str, Any]:
        """Keyword arguments of `group_advantages`."""
        plain = self.disable_grpo_std_normalization
        return {
            "std": None if plain else self.spec.std,
            "epsilon": self.spec.epsilon,
            "group_of_one": self.spec.group_of_one,
            "invalid": self.invalid_reward,
            "baseline": not self.disable_rewards_normalization,
        }


def build_loss(options: AlgorithmOptions) -> LossFunction:
    """The loss that `options` describe. Imports torch."""
    build = load_object(options.spec.loss, flag=f"--advantage-estimator {options.advantage_estimator}")
    return build(options)
