# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Expected gradients of the product's losses: every group that a bandit can give, weighed by its probability."""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.papers.bandits import OLD, PROXIMAL, REFERENCE, REWARD, THETA, probabilities, score
from benchmarks.papers.responses import Response
from relax.algorithms.options import AlgorithmOptions
from tests.unit.algorithms.theta import run_step


def expected_gradient(
    options: AlgorithmOptions, *, samples: int, on_policy: bool, reward: np.ndarray = REWARD
) -> np.ndarray:
    """- E[gradient of the loss]: the direction of the update. Each group has `samples` answers of one token."""
    logp, old, between, ref = (np.log(probabilities(x)) for x in (THETA, OLD, PROXIMAL, REFERENCE))
    sampler = logp if on_policy else old
    total = np.zeros(len(THETA))
    for group in itertools.product(range(len(THETA)), repeat=samples):
        step = [
            Response(
                group=0,
                reward=float(reward[a]),
                mask=np.ones(1, np.uint8),
                logp=logp[[a]],
                rollout_logprobs=sampler[[a]],
                old_logprobs=between[[a]],
                ref_logprobs=ref[[a]],
                entropy=np.zeros(1),
                features=score(a)[None],
            )
            for a in group
        ]
        chance = float(np.exp(sum(sampler[a] for a in group)))
        total -= chance * run_step(step, options, [range(samples)]).gradient
    return total
