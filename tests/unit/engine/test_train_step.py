# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The glue of a rollout's optimizer steps, over a backend that only keeps a record."""

import pytest

from relax.backends.base import Part, StepStats
from relax.engine.train_step import train_rollout, train_step


class _Recorder:
    def __init__(self):
        self.calls = []

    def backward(self, part, loss):
        self.calls.append(("backward", part, loss))
        return StepStats({"policy": 2.0}, {"policy": 4.0}, seconds={"forward": 1.0})

    def step(self, divisor):
        self.calls.append(("step", divisor))
        return StepStats(grad_norm=0.5, lr=0.1, seconds={"step": 0.25})


def test_each_part_is_followed_by_its_own_step():
    backend, parts = _Recorder(), [Part(((),)), Part(((), ()))]
    stats = train_rollout(backend, parts, "loss", [8.0, 6.0])
    assert backend.calls == [
        ("backward", parts[0], "loss"),
        ("step", 8.0),
        ("backward", parts[1], "loss"),
        ("step", 6.0),
    ]
    assert [s.means() for s in stats] == [{"policy": 0.5}, {"policy": 0.5}]
    assert [(s.grad_norm, s.lr) for s in stats] == [(0.5, 0.1)] * 2


def test_streamed_parts_add_up_before_one_step():
    backend = _Recorder()
    stats = train_step(backend, [Part(((),)), Part(((),))], "loss", 3.0)
    assert [call[0] for call in backend.calls] == ["backward", "backward", "step"]
    assert stats.sums == {"policy": 4.0} and stats.counts == {"policy": 8.0}
    assert stats.seconds == {"forward": 2.0, "step": 0.25}


def test_steps_and_divisors_must_pair_up():
    with pytest.raises(ValueError):
        train_rollout(_Recorder(), [Part(((),))], "loss", [1.0, 2.0])
