# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where the time of a step went, in one line at the end of a run: who waited, how long, and what to change.

A step lasts from one optimizer step's end to the next one's. On that path lie, one after another, the wait for
samples, the scores of other weights, reading the bus, forward and backward, the optimizer, the weights on their way to
the engines, and a checkpoint. Generation lies on it as far as the trainer waited for samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

WARM_UP_STEPS = 1  # the first step holds start-up
MIN_SHARE = 0.01  # parts below are left out of the line
MIN_QUEUE_SHARE = 0.1  # of a group's rewards, from which on their queue is named

# Parts of a step in their order: metric, words.
PARTS = (
    ("perf/wait_s/actor", "waiting for samples"),
    ("perf/score_s", "scoring by the actor"),
    ("perf/wait_s/actor_data", "reading the bus"),
    ("perf/forward_backward_s", "forward and backward"),
    ("perf/optimizer_s", "optimizer"),
    ("perf/weight_sync_s", "weights to the engines"),
    ("perf/checkpoint_s", "checkpoint"),
)
REST = "other roles and control"
ADVICE = {
    "perf/score_s": "give reference and old log-probs a role of their own (--resource), or leave --kl-loss-coef at 0",
    "perf/wait_s/actor_data": "the bus is slow: raise --num-data-storage-units, or see logs/ for what it waits for",
    "perf/forward_backward_s": "training is the limit: more actor processes (--resource), or larger micro-batches "
    "(--max-tokens-per-gpu)",
    "perf/optimizer_s": "larger batches (--global-batch-size) take fewer optimizer steps",
    "perf/weight_sync_s": "update engines less often (--update-weights-interval), if --max-staleness allows",
    "perf/checkpoint_s": "save less often (--save-interval)",
    REST: "advantages, reference or actor_fwd are the limit: give them more cards (--resource)",
}


SUPERVISED_ADVICE = {
    "perf/wait_s/actor": "the producer is the limit: let it run ahead (--sft-max-in-flight-steps), give it workers "
    "(--sft-prefetch-num-workers, --mm-processor-pool-size) or shards (RELAX_SFT_TQ_SHARDS)",
    REST: "evaluation, prediction and control take most of it: see --eval-interval and --sft-predict-interval",
}


def parts_of(step: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each part of one step that was measured, and what is left of its wall time."""
    found = {name: step[name] for name, _ in PARTS if name in step}
    found[REST] = max(0.0, step["perf/step_s"] - sum(found.values()))
    return found


def critical_path(steps: Sequence[Mapping[str, float]], *, shared: bool, supervised: bool = False) -> str | None:
    """The line, from the metrics of all steps; None for a run too short to tell.

    Args:
        shared: actor and rollout take turns (colocate), so that waiting for samples is generation itself.
        supervised: samples come from a producer.
    """
    later = [step for step in steps[WARM_UP_STEPS:] if "perf/step_s" in step]
    if not later:
        return None
    # Means, not medians: a checkpoint of every tenth step is a tenth of its time on the path.
    sums: dict[str, float] = {}
    for step in later:
        for name, seconds in parts_of(step).items():
            sums[name] = sums.get(name, 0.0) + seconds
    total = sum(step["perf/step_s"] for step in later)
    if total <= 0:
        return None
    words = {**dict(PARTS), REST: REST}
    told = [
        f"{words[name]} {sums[name] / len(later):.2f} s ({sums[name] / total:.0%})"
        for name in words
        if sums.get(name, 0.0) >= MIN_SHARE * total
    ]
    longest = max(sums, key=lambda name: sums[name])
    known = {**ADVICE, **(SUPERVISED_ADVICE if supervised else {})}
    advice = known[longest] if longest in known else _waiting_advice(later, shared=shared)
    return f"critical path of a step, {total / len(later):.2f} s: {', '.join(told)}; {advice}"


def _waiting_advice(steps: Sequence[Mapping[str, float]], *, shared: bool) -> str:
    mean = {
        name: statistics.fmean([step[name] for step in steps if name in step] or [0.0])
        for name in ("perf/generate_s/mean", "perf/reward_s/mean", "perf/reward_queue_s/mean")
    }
    if mean["perf/reward_s/mean"] > mean["perf/generate_s/mean"]:
        remedy = "overlap it with training (--fully-async)" if shared else "raise --max-staleness"
        queued = mean["perf/reward_queue_s/mean"]
        if queued > MIN_QUEUE_SHARE * mean["perf/reward_s/mean"]:
            remedy = f"{queued:.2f} s of it wait for a turn: raise --reward-max-concurrency"
        return f"rewards are the limit ({mean['perf/reward_s/mean']:.2f} s a group): {remedy}"
    remedy = "overlap it with training (--fully-async)" if shared else "more engines (--resource)"
    return f"generation is the limit: {remedy}"
