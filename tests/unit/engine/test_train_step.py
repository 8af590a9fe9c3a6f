# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The glue of a rollout's optimizer steps, over a backend that only keeps a record."""

import pytest

from relax.backends.base import Part, StepStats
from relax.engine.train_step import RolloutSteps
from relax.utils.errors import InternalError

ONE, TWO = Part(((),)), Part(((), ()))


class _Recorder:
    def __init__(self):
        self.calls = []

    def backward(self, part, loss):
        self.calls.append(("backward", part, loss))
        return StepStats({"policy": [0.5, 1.5]}, {"policy": 4.0}, seconds={"forward": 1.0})

    def step(self, divisor):
        self.calls.append(("step", divisor))
        return StepStats(grad_norm=0.5, lr=0.1, gradient={"w": 3.0}, seconds={"step": 0.25})


def test_each_step_is_taken_with_its_own_divisor():
    backend = _Recorder()
    steps = RolloutSteps(backend, "loss")
    steps.count(0, (8.0, 6.0))
    stats = [steps.train(0, ONE, ends_step=True), steps.train(1, TWO, ends_step=True)]
    assert backend.calls == [("backward", ONE, "loss"), ("step", 8.0), ("backward", TWO, "loss"), ("step", 6.0)]
    assert [s.means() for s in stats] == [{"policy": 0.5}, {"policy": 0.5}]
    assert [(s.grad_norm, s.lr, s.gradient) for s in stats] == [(0.5, 0.1, {"w": 3.0})] * 2


def test_streamed_pieces_add_up_before_one_step_that_is_divided_once_by_what_all_parts_count():
    backend = _Recorder()
    steps = RolloutSteps(backend, "loss")
    steps.count(0, (2.0,))
    assert steps.train(0, ONE, ends_step=False) is None
    steps.count(0, (3.0,))
    stats = steps.train(0, ONE, ends_step=True)
    assert [call[0] for call in backend.calls] == ["backward", "backward", "step"]
    assert backend.calls[-1] == ("step", 5.0)
    assert stats.sums == {"policy": 4.0} and stats.counts == {"policy": 8.0}
    assert stats.seconds == {"forward": 2.0, "step": 0.25}


def test_a_step_in_which_nothing_is_counted_is_divided_by_one():
    backend = _Recorder()
    steps = RolloutSteps(backend, "loss")
    steps.count(0, (0.0,))
    steps.train(0, ONE, ends_step=True)
    assert backend.calls[-1] == ("step", 1.0)


def test_a_step_without_a_divisor_is_refused_before_weights_change():
    backend = _Recorder()
    steps = RolloutSteps(backend, "loss")
    steps.count(0, (1.0,))
    steps.train(0, ONE, ends_step=True)
    with pytest.raises(InternalError, match="step 1 of the rollout has no divisor"):
        steps.train(1, ONE, ends_step=True)
    assert backend.calls[-1][0] == "backward"


def test_sums_are_the_same_bits_however_a_step_is_cut():
    # 0.1 + 0.2 + 0.3 is 0.6000000000000001 from the left and 0.6 from the right; rounded once, it is 0.6
    whole, left, right = StepStats({"x": [0.1, 0.2, 0.3]}), StepStats({"x": [0.1]}), StepStats({"x": [0.2, 0.3]})
    left.add(right)
    assert whole.sums == left.sums == {"x": 0.6}
