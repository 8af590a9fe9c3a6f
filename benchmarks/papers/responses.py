# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Responses of one optimizer step with made-up numbers, float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Response:
    """One sample. Arrays have one entry a response token; log-probs in nats."""

    group: int
    reward: float  # NaN: none
    mask: np.ndarray  # 1 where the token is sampled and trained
    logp: np.ndarray  # current
    rollout_logprobs: np.ndarray  # engine
    old_logprobs: np.ndarray  # trainer, before the rollout's first step
    ref_logprobs: np.ndarray
    entropy: np.ndarray
    removed: bool = False
    features: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # [R, P], d logp / d parameters

    @property
    def trained(self) -> np.ndarray:
        return np.flatnonzero(self.mask)


def example_step(seed: int, *, num_parameters: int = 4, spread: float = 0.4) -> list[Response]:
    """Three groups of 3, 3 and 2 with tool tokens inside, one response without any trained token, one removed, one
    without a reward and one group whose rewards are all equal."""
    rng = np.random.default_rng(seed)
    groups = [0, 0, 0, 1, 1, 1, 2, 2]
    rewards = [1.0, 0.25, -0.5, 0.0, 1.5, np.nan, 2.0, 2.0]
    lengths = [4, 1, 6, 3, 5, 2, 3, 4]
    found = []
    for place, (group, reward, length) in enumerate(zip(groups, rewards, lengths, strict=True)):
        mask = np.ones(length, np.uint8)
        if length > 3:
            mask[1:3] = 0
        if place == 6:
            mask[:] = 0
        base = rng.normal(-1.2, 0.3, length)
        near = lambda: base + rng.normal(0.0, spread, length)  # noqa: B023, E731
        found.append(
            Response(
                group,
                reward,
                mask,
                logp=base,
                rollout_logprobs=near(),
                old_logprobs=near(),
                ref_logprobs=near(),
                entropy=rng.uniform(0.1, 2.0, length),
                removed=place == 3,
                features=rng.normal(size=(length, num_parameters)),
            )
        )
    found[2].ref_logprobs[0] = found[2].logp[0] + 3.0  # exp(3) - 1 - 3 = 16 nats: beyond the bound of low_var_kl
    return found
