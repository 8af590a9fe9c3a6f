# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""M2PO's threshold: by hand, by its definition, and as a number of the whole step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.responses import example_step
from relax.algorithms.m2po import M2Statistic, threshold
from relax.algorithms.options import AlgorithmOptions, build_loss, build_statistic
from relax.algorithms.statistic import ScoredSequence
from relax.backends.base import Part
from relax.data.columns import TrainSequence
from relax.engine.train_step import RolloutSteps
from relax.utils.errors import InternalError
from tests.unit.algorithms.theta import ThetaBackend, prepared, run_step


def test_the_threshold_fills_up_to_the_budget():
    # squares 0.01, 0.04, 0.25, 1.0, mean 0.325. Budget 0.1: 0.01 + 0.04 + 2 tau^2 = 0.4, tau^2 = 0.175
    assert threshold(np.array([0.25, 0.01, 1.0, 0.04]), 0.1) == pytest.approx(math.sqrt(0.175), abs=1e-15)
    # budget 0.01: all are held at it: 4 tau^2 = 0.04
    assert threshold(np.array([0.25, 0.01, 1.0, 0.04]), 0.01) == pytest.approx(0.1, abs=1e-15)
    # within the budget: the largest of them, so that nothing is clipped
    assert threshold(np.array([0.25, 0.01, 1.0, 0.04]), 0.4) == 1.0
    assert threshold(np.zeros(0), 0.1) == 0.0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-6, 9.0), min_size=1, max_size=12), st.floats(1e-3, 2.0))
def test_the_mean_of_the_held_squares_is_the_budget_wherever_it_was_exceeded(squares, budget):
    array = np.array(squares)
    tau = threshold(array, budget)
    if array.mean() > budget:
        assert np.minimum(array, tau**2).mean() == pytest.approx(budget, rel=1e-9)
    else:
        assert tau**2 == pytest.approx(array.max(), rel=1e-12)


def scored(x, advantages, keep=None) -> ScoredSequence:
    x = np.asarray(x, np.float64)
    columns = {"old_logprobs": np.full(len(x), -2.0), "advantages": np.asarray(advantages, np.float64)}
    kept = np.ones(len(x), bool) if keep is None else np.asarray(keep, bool)
    return ScoredSequence(-2.0 + x, kept, columns)


def test_harmful_tokens_are_those_that_move_on_in_the_direction_of_their_advantage():
    # kept and harmful: (0.5, A 1) and (-0.25, A -2); not: opposite signs, x = 0, A = 0, an untrained one
    statistic = M2Statistic(0.01, "old_logprobs")
    found = statistic.local(
        [scored([0.5, -0.5, 0.0], [1, 1, 1]), scored([-0.25, 0.25, 1.0, 0.75], [-2, -2, 0, 1], [1, 1, 1, 0])]
    )
    assert sorted(found.tolist()) == [0.0625, 0.25]
    value = statistic.value(found)
    # mean 0.15625 > 0.01: both are held at tau^2 = 0.01
    assert value.column == pytest.approx(0.1, abs=1e-15)
    assert value.metrics == {
        "m2_before": (0.3125, 2.0),
        "m2_after": (pytest.approx(0.02, abs=1e-15), 2.0),
        "m2_threshold": (pytest.approx(0.1, abs=1e-15), 1.0),
    }


def test_where_every_ratio_is_one_there_is_nothing_to_bound():
    options = AlgorithmOptions(advantage_estimator="m2po", old_log_probs="current")
    statistic = build_statistic(options)
    assert statistic is not None
    assert statistic.local([scored([0.5], [1.0])]).tolist() == [] and statistic.value(np.zeros(0)).column == 0.0


def test_the_threshold_is_that_of_the_step_and_is_logged_once():
    step = example_step(5)
    options = AlgorithmOptions(advantage_estimator="m2po", m2po_budget=0.02)
    columns, _ = prepared(step, options)
    squares = [
        (r.logp[t] - r.rollout_logprobs[t]) ** 2
        for r, own in zip(step, columns, strict=True)
        for t in r.trained
        if own["loss_weight"].any() and (r.logp[t] - r.rollout_logprobs[t]) * own["advantages"][t] > 0
    ]
    means = run_step(step, options, [[0, 1], [2, 3, 4], [5, 6, 7]]).means
    assert means["m2_before"] == pytest.approx(np.mean(squares), abs=1e-12)
    assert means["m2_after"] == pytest.approx(0.02, abs=1e-12)
    assert means["m2_threshold"] == pytest.approx(threshold(np.array(squares), 0.02), abs=1e-12)


def test_a_step_in_pieces_is_an_error_and_not_a_threshold_of_its_piece():
    step = example_step(5)
    options = AlgorithmOptions(advantage_estimator="m2po")
    backend = ThetaBackend(step)
    steps = RolloutSteps(backend, build_loss(options), build_statistic(options))  # type: ignore[arg-type]
    own, _ = prepared(step, options)
    one = TrainSequence(0, 0, np.zeros(4, np.int32), 0, step[0].mask, dict(own[0]))
    with pytest.raises(InternalError, match="optimizer step 0 came in pieces, and m2_threshold is of a whole"):
        steps.train(0, Part(((one,),)), ends_step=False)


def test_other_algorithms_need_nothing_of_the_whole_step():
    assert build_statistic(AlgorithmOptions()) is None
    own = {"loss_type": "custom_loss", "custom_loss_function_path": f"{__name__}.unused"}
    assert build_statistic(AlgorithmOptions(advantage_estimator="m2po", **own)) is None
