# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every algorithm and option of the loss, as flags: what the property tests and `benchmarks.closed_forms` run over."""

from __future__ import annotations

from typing import Any

from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.spec import ALGOS, REDUCTIONS

KL = {"use_kl_loss": True, "kl_loss_coef": 0.1}

VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {"advantage_estimator": "grpo"},
    "grpo, true on-policy": {"advantage_estimator": "grpo", "old_log_probs": "current"},
    "grpo, dual clip": {"advantage_estimator": "grpo", "eps_clip": 0.1, "eps_clip_c": 1.2},
    "grpo, no std": {"advantage_estimator": "grpo", "disable_grpo_std_normalization": True},
    "grpo, k1 and entropy": {"advantage_estimator": "grpo", **KL, "entropy_coef": 0.02},
    "grpo, k2": {"advantage_estimator": "grpo", **KL, "kl_loss_type": "k2"},
    "grpo, k3": {"advantage_estimator": "grpo", **KL, "kl_loss_type": "k3"},
    "grpo, low_var_kl": {"advantage_estimator": "grpo", **KL, "kl_loss_type": "low_var_kl"},
    "grpo, unbiased k3": {"advantage_estimator": "grpo", **KL, "kl_loss_type": "k3", "use_unbiased_kl": True},
    "grpo, whitened": {"advantage_estimator": "grpo", "normalize_advantages": True},
    "grpo, several steps": {"advantage_estimator": "grpo", "old_log_probs": "old"},
    "dapo": {"advantage_estimator": "grpo", "eps_clip": 0.1, "eps_clip_high": 0.28},
    "decoupled ppo": {"advantage_estimator": "grpo", "old_log_probs": "old", "use_tis": True, "tis_clip": 1.2},
    "icepop": {
        "advantage_estimator": "grpo",
        "old_log_probs": "old",
        "use_tis": True,
        "tis_mode": "mask",
        "tis_clip": 1.4,
        "tis_clip_low": 0.7,
    },
    "opsm": {"advantage_estimator": "grpo", "use_opsm": True, "opsm_delta": 0.01},
    "dr_grpo": {"advantage_estimator": "dr_grpo"},
    "gspo": {"advantage_estimator": "gspo", "eps_clip": 0.05, "eps_clip_high": 0.08},
    "gspo, dual clip": {"advantage_estimator": "gspo", "eps_clip": 0.05, "eps_clip_c": 1.1},
    "sapo": {"advantage_estimator": "sapo", "sapo_tau_pos": 1.5, "sapo_tau_neg": 2.0},
    "cispo": {"advantage_estimator": "cispo", "eps_clip": 0.1, "eps_clip_high": 0.3},
    "cispo, dual clip": {"advantage_estimator": "cispo", "eps_clip_high": 0.3, "eps_clip_c": 1.1},
    "m2po": {"advantage_estimator": "m2po", "m2po_budget": 0.01},
    "m2po, tight": {
        "advantage_estimator": "m2po",
        "m2po_budget": 0.001,
        "m2po_eps_clip_floor": 0.01,
        "m2po_eps_clip_high_floor": 0.01,
        "eps_clip_c": 1.3,
    },
    "rloo": {"advantage_estimator": "rloo", "old_log_probs": "current"},
    "reinforce_plus_plus": {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.05, "gamma": 0.9},
    "reinforce_plus_plus_baseline": {
        "advantage_estimator": "reinforce_plus_plus_baseline",
        **KL,
        "kl_loss_type": "k2",
    },
}


def cases() -> list[tuple[str, str]]:
    """(variant, aggregation) for every aggregation that the variant's algorithm allows."""
    found = []
    for name, flags in VARIANTS.items():
        only = ALGOS[flags["advantage_estimator"]].reduction
        found += [(name, mode) for mode in REDUCTIONS if only in (None, mode)]
    return found


def options_of(variant: str, mode: str) -> AlgorithmOptions:
    return AlgorithmOptions(**VARIANTS[variant], loss_reduction=mode, rollout_max_response_len=9)
