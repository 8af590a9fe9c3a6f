# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The algorithms beside formulas written from their papers, float64, in a few seconds.

    steps         loss and every derivative of a step of uneven groups, against `benchmarks.papers.objectives`
    expectations  the mean gradient over every group that a bandit can give, against its closed form

python -m benchmarks.closed_forms [--seeds 20]
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np

from benchmarks.papers.enumerated import expected_gradient
from benchmarks.papers.expectations import EXPECTATIONS
from benchmarks.papers.objectives import step_loss
from benchmarks.papers.responses import example_step
from benchmarks.papers.variants import VARIANTS, cases, options_of
from tests.unit.algorithms.theta import run_step

FLOAT32 = 1e-6  # a number on the way travels as float32, or has an epsilon that the closed form leaves out
FLOAT64 = 1e-12


def step_error(variant: str, mode: str, seed: int) -> float:
    """Largest difference of the loss and of its derivatives by log-probs and entropies."""
    step, options = example_step(seed), options_of(variant, mode)
    flags = {**VARIANTS[variant], "loss_reduction": mode, "rollout_max_response_len": 9}
    flags["old_log_probs"] = options.old_log_probs
    loss, by_logp, by_entropy = step_loss(step, options.advantage_estimator, **flags)
    found = run_step(step, options, [range(len(step))])
    worst = abs(found.loss - loss)
    for place in range(len(step)):
        worst = max(worst, float(np.abs(found.by_logp[place] - by_logp[place]).max()))
        worst = max(worst, float(np.abs(found.by_entropy[place] - by_entropy[place]).max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(prog="closed_forms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    bad, largest = [], 0.0
    print(f"{'variant':<32}{'aggregation':<16}{'largest difference':>20}")
    for variant, mode in cases():
        worst = max(step_error(variant, mode, seed) for seed in range(options.seeds))
        limit = FLOAT32 if variant.startswith("m2po") else FLOAT64
        largest = max(largest, worst if limit == FLOAT64 else 0.0)
        bad += [f"{variant}, {mode}"] * (not worst <= limit)
        print(f"{variant:<32}{mode:<16}{worst:>20.2e}")
    print(f"\n{'expectation over a bandit':<48}{'largest difference':>20}")
    for name, case in EXPECTATIONS.items():
        found = expected_gradient(case.options, samples=case.samples, on_policy=case.on_policy, reward=case.reward)
        worst = float(np.abs(found - case.closed_form).max())
        bad += [name] * (not worst <= (FLOAT32 if case.loose else FLOAT64))
        print(f"{name:<48}{worst:>20.2e}")
    result = {
        "steps": len(cases()) * options.seeds,
        "expectations": len(EXPECTATIONS),
        "largest_float64_difference": largest,
        "different": bad,
    }
    print("RESULT", json.dumps(result))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
