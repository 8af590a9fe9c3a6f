# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import pytest

from relax.engine.rewards.length import overlong_penalty


@pytest.mark.parametrize(
    ("length", "buffer", "penalty"),
    [
        (80, 20, 0.0),  # L - b
        (81, 20, -1 / 20),  # L - b + 1
        (90, 20, -0.5),
        (100, 20, -1.0),  # L
        (101, 20, -1.0),
        (100, 0, 0.0),  # no buffer: nothing up to L ...
        (101, 0, -1.0),  # ... and all past it
        (50, 100, -0.5),
    ],
)
def test_overlong_penalty_follows_its_closed_form_V5(length, buffer, penalty):
    assert overlong_penalty(length, max_len=100, buffer=buffer) == pytest.approx(penalty, abs=1e-15)


def test_a_buffer_longer_than_the_limit_is_refused():
    with pytest.raises(ValueError, match="buffer 101"):
        overlong_penalty(1, max_len=100, buffer=101)
