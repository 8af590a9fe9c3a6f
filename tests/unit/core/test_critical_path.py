# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The line at the end of a run: parts sum to the step, the longest one is named with its remedy."""

import pytest

from relax.core.critical_path import ADVICE, PARTS, REST, critical_path, parts_of
from relax.utils.metrics import TABLE


def step(seconds=2.0, **parts):
    return {"perf/step_s": seconds, **{f"perf/{name.replace('__', '/')}": value for name, value in parts.items()}}


START = step(60.0, wait_s__actor=58.0)  # the first step holds start-up and does not count


def test_parts_and_their_shares_are_means_over_the_steps():
    text = critical_path(
        [START, step(forward_backward_s=1.5, checkpoint_s=0.4), step(forward_backward_s=1.3)], shared=False
    )
    # forward and backward: (1.5 + 1.3) / 2 = 1.4 of 2.0; checkpoint 0.4 / 2 = 0.2; the rest 0.1 + 0.7 over two
    assert text.startswith("critical path of a step, 2.00 s: forward and backward 1.40 s (70%), ")
    assert "checkpoint 0.20 s (10%)" in text
    assert f"{REST} 0.40 s (20%)" in text
    assert "training is the limit" in text


def test_small_parts_are_left_out_of_the_line():
    text = critical_path([START, step(forward_backward_s=1.97, optimizer_s=0.01, wait_s__actor=0.02)], shared=False)
    assert "optimizer" not in text.split(";")[0]
    assert "waiting for samples 0.02 s (1%)" in text


@pytest.mark.parametrize(
    ("shared", "generate", "reward", "expected"),
    [
        (False, 1.0, 0.1, "generation is the limit: more engines"),
        (False, 0.1, 1.0, "rewards are the limit (1.00 s a group): raise --max-staleness"),
        (True, 1.0, 0.1, "--fully-async"),
        (True, 0.1, 1.0, "--fully-async"),
    ],
)
def test_a_wait_for_samples_is_told_by_what_the_samples_waited_for(shared, generate, reward, expected):
    """A10: overlap gains nothing where generation is the whole step; the line says what to change."""
    one = step(wait_s__actor=1.5, forward_backward_s=0.3, generate_s__mean=generate, reward_s__mean=reward)
    assert expected in critical_path([START, one], shared=shared)


@pytest.mark.parametrize(("queued", "named"), [(0.5, True), (0.05, False)])
def test_rewards_that_wait_for_a_turn_are_told_with_the_flag(queued, named):
    one = step(wait_s__actor=1.5, generate_s__mean=0.1, reward_s__mean=1.0, reward_queue_s__mean=queued)
    text = critical_path([START, one], shared=False)
    assert ("0.50 s of it wait for a turn: raise --reward-max-concurrency" in text) == named
    assert ("raise --max-staleness" in text) != named


def test_parts_never_sum_to_more_than_was_measured_nor_to_less_than_the_step():
    parts = parts_of(step(1.0, forward_backward_s=0.7))
    assert parts == {"perf/forward_backward_s": 0.7, REST: pytest.approx(0.3)}
    assert parts_of(step(1.0, forward_backward_s=1.1))[REST] == 0.0


def test_a_run_of_one_step_tells_nothing():
    assert critical_path([START], shared=False) is None
    assert critical_path([], shared=False) is None


def test_every_part_is_a_declared_metric_and_has_advice():
    names = {spec.name for spec in TABLE}
    for name, _ in PARTS:
        assert name in names or (name.startswith("perf/wait_s/") and "perf/wait_s/{role}" in names)
        assert name in ADVICE or name == "perf/wait_s/actor"
