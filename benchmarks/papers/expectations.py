# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which closed form each algorithm has on average, and under which flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.papers import bandits
from relax.algorithms.options import AlgorithmOptions

RIGHT = np.array([1.0, 0.0, 1.0])
PLAIN = {"disable_rewards_normalization": True}  # rewards as advantages
WIDE = {"eps_clip": 0.99, "eps_clip_high": 99.0}


@dataclass(frozen=True)
class Expectation:
    options: AlgorithmOptions
    closed_form: np.ndarray
    samples: int = 1
    on_policy: bool = True
    reward: np.ndarray = field(default_factory=lambda: bandits.REWARD)
    loose: bool = False  # the code has an epsilon beside the std that the closed form leaves out


def _on(name: str, closed_form: np.ndarray, samples: int, **flags: Any) -> Expectation:
    options = AlgorithmOptions(advantage_estimator=name, rollout_max_response_len=2, **flags)
    return Expectation(options, closed_form, samples)


def _off(name: str, closed_form: np.ndarray, **flags: Any) -> Expectation:
    options = AlgorithmOptions(advantage_estimator=name, **PLAIN, **flags)
    return Expectation(options, closed_form, samples=1, on_policy=False)


CURRENT = {"old_log_probs": "current"}
NO_STD = {"disable_grpo_std_normalization": True}
REWARD = bandits.gradient_of_reward()
KL_LOSS = {"use_kl_loss": True, "kl_loss_coef": 0.3}

EXPECTATIONS: dict[str, Expectation] = {
    "rloo is unbiased": _on("rloo", REWARD, 3, **CURRENT),
    "rloo of two is unbiased": _on("rloo", REWARD, 2, **CURRENT),
    "grpo without std is (n - 1) / n of it": _on("grpo", bandits.group_mean_shrinks(3), 3, **NO_STD),
    "dr_grpo the same over the constant length": _on("dr_grpo", bandits.group_mean_shrinks(3) / 2, 3, **CURRENT),
    "gspo of one token is grpo": _on("gspo", bandits.group_mean_shrinks(3), 3, **NO_STD),
    "sapo on policy is grpo": _on("sapo", bandits.group_mean_shrinks(3), 3, **NO_STD),
    "cispo on policy is grpo": _on("cispo", bandits.group_mean_shrinks(3), 3, **NO_STD),
    "m2po on policy is grpo": _on("m2po", bandits.group_mean_shrinks(3), 3, **NO_STD),
    **{
        f"grpo of {n} binary rewards": Expectation(
            AlgorithmOptions(),
            bandits.grpo_of_binary_rewards(RIGHT, n),
            samples=n,
            reward=RIGHT,
            loose=True,
        )
        for n in (2, 4)
    },
    "grpo off policy, unclipped": _off("grpo", REWARD, **WIDE),
    "gspo off policy, unclipped": _off("gspo", REWARD, **WIDE),
    "cispo off policy, unbounded": _off("cispo", REWARD, **WIDE),
    "grpo off policy, clipped": _off("grpo", bandits.clipped(0.05, 0.1), eps_clip=0.05, eps_clip_high=0.1),
    "sapo off policy": _off("sapo", bandits.soft_gate(2.0), sapo_tau_pos=2.0, sapo_tau_neg=2.0),
    "decoupled, weights not cut": _off("grpo", REWARD, **WIDE, old_log_probs="old", use_tis=True, tis_clip=99.0),
    "decoupled, weights cut": _off(
        "grpo", bandits.truncated(1.05), **WIDE, old_log_probs="old", use_tis=True, tis_clip=1.05
    ),
    "k2 as a loss holds KL(pi, ref)": _on(
        "grpo", REWARD - 0.3 * bandits.gradient_of_kl(), 1, **PLAIN, **CURRENT, **KL_LOSS, kl_loss_type="k2"
    ),
    "unbiased k3 holds KL(pi, ref)": _on(
        "grpo",
        REWARD - 0.3 * bandits.gradient_of_kl(),
        1,
        **PLAIN,
        **CURRENT,
        **KL_LOSS,
        kl_loss_type="k3",
        use_unbiased_kl=True,
    ),
    "k1 as a loss holds nothing": _on("grpo", REWARD, 1, **PLAIN, **CURRENT, **KL_LOSS, kl_loss_type="k1"),
}
