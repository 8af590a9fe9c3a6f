# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from relax.engine.rewards.values import scalar


@pytest.mark.parametrize(
    "value",
    [
        True,
        1,
        1.0,
        np.float32(1),
        np.int64(1),
        np.bool_(True),
        np.ones(1),
        np.ones((1, 1)),
        torch.ones(1),
        torch.tensor(1),
    ],
)
def test_numbers_of_every_kind_become_a_float_G12(value):
    assert scalar(value) == 1.0 and type(scalar(value)) is float


@pytest.mark.parametrize("value", ["1.0", None, [1.0], np.ones(2), torch.ones(2), {"a": 1}, object(), np.array([])])
def test_anything_else_is_no_number(value):
    assert scalar(value) is None


def test_exact_numbers_are_taken():
    assert scalar(Fraction(1, 2)) == 0.5
    assert scalar(Decimal("0.5")) is None  # decimal.Decimal is no Real; converting it is the function's own choice
