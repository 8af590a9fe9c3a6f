# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Workload W1-lat, bound by waiting: 8 prompts x 8 samples whose rewards take a log-normal time (median 1 s).

    python -m benchmarks.w1_lat --against FOLDER [--pairs 1] [--steps 8]

What asynchrony gains: with g, l, t the seconds of a colocate step that go to generation, to the slowest reward and to
training, staleness k can be min(k + 1, (g + l + t) / max(g, t)) times as fast. `gain` is what was measured,
`of_theory` its share of that. See `side_by_side`; the last line is `RESULT {json}`.
"""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.side_by_side import Run, Workload, compare

STALENESS = {"relax_async": 1, "relax_async_3": 3}
GOAL = 0.95

W1_LAT = Workload(
    name="w1_lat",
    fixture=("--size", "w1"),
    prompts=8,
    samples=8,
    max_new=32,
    max_tokens=2048,
    reward="benchmarks.rewards.slow_sum_reward",
    peers={"b0": ("b0.py", "seq", "--threads", "2", "--prompts", "8", "--lat-median", "1.0")},
    modes=("relax_colocate", "relax_async", "relax_async_3"),
    extra=("--reward-max-concurrency", "256"),  # 4 rollouts wait at a time
)


def gains(results: Mapping[str, Sequence[Run]]) -> dict:
    """Measured and possible speed-up of each staleness over the colocate run of the same rounds."""
    shared = results.get("relax_colocate")
    if not shared:
        return {}
    steps = [step for run in shared for step in run.metrics]
    latency = statistics.fmean(step["perf/reward_s/max"] for step in steps)
    training = statistics.fmean(step["perf/forward_backward_s"] + step["perf/optimizer_s"] for step in steps)
    whole = statistics.fmean(step["perf/step_s"] for step in steps)
    generation = max(whole - latency - training, 0.0)
    out: dict[str, dict[str, float]] = {}
    for name, k in STALENESS.items():
        if name not in results:
            continue
        possible = min(k + 1, whole / max(generation, training))
        # means: a step of an async run ends when a slow sample does, so that single steps vary
        measured = whole / statistics.fmean(step["perf/step_s"] for run in results[name] for step in run.metrics)
        out[name] = {
            "gain": round(measured, 3),
            "possible": round(possible, 3),
            "of_theory": round(measured / possible, 3),
        }
        print(f"{name}: {measured:.2f} times as fast as colocate, {measured / possible:.0%} of what is possible")
    parts = {"generation_s": round(generation, 3), "latency_s": round(latency, 3), "training_s": round(training, 3)}
    return {"parts": parts, "asynchrony": out, "of_theory_at_least": GOAL}


if __name__ == "__main__":
    compare(W1_LAT, __doc__ or "", gains)
