# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import numpy as np
import pytest

from relax.engine.sft.dataset.split import split_rows
from relax.utils.errors import ConfigError


@pytest.mark.parametrize(
    ("count", "eval_size", "held"),
    [
        (19252, 0.01, 192),  # 192.52 rounded down
        (100, 0.29, 29),  # although 0.29 * 100 is 28.999999999999996 in binary
        (10, 0.99, 9),
        (10, 0.01, 1),  # a share that is less than a row takes one
        (10, 1, 1),
        (10, 1.0, 1),
        (10, 9, 9),
    ],
)
def test_below_one_a_share_from_one_on_a_count(count, eval_size, held):
    train, evaluation = split_rows(count, eval_size, seed=7)
    assert len(evaluation) == held
    assert sorted([*train, *evaluation]) == list(range(count))
    assert train.dtype == evaluation.dtype == np.int64
    assert (np.diff(train) > 0).all()
    assert (np.diff(evaluation) > 0).all()


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    first, again, other = (split_rows(1000, 0.1, seed=seed)[1].tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_rows_are_drawn_from_everywhere():
    # 100 of 1000 rows: each tenth of the file expects 10; 0 has a probability below 1e-4.
    _, evaluation = split_rows(1000, 100, seed=3)
    assert np.histogram(evaluation, bins=10, range=(0, 1000))[0].min() > 0


@pytest.mark.parametrize(
    ("eval_size", "message"),
    [
        (0, "must be above 0"),
        (-1, "must be above 0"),
        (float("inf"), "must be above 0"),
        (float("nan"), "must be above 0"),
        (2.5, "a whole number"),
        (10, "leaves none to train"),
        (11, "takes 11 of the 10 rows"),
    ],
)
def test_wrong_sizes_are_errors(eval_size, message):
    with pytest.raises(ConfigError, match=f"--eval-size.*{message}"):
        split_rows(10, eval_size, seed=1)
