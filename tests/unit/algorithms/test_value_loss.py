# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The critic's loss and its gradient, by hand and in float64."""

from __future__ import annotations

import pytest
import torch

from relax.algorithms.loss import TokenBatch
from relax.algorithms.value_loss import CriticLoss, clipped_value_loss
from relax.algorithms.value_moments import explained_variance


def tensor(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_the_larger_of_both_squared_errors_decides():
    # old 0, eps 0.2, return 1:
    #   value 0.1  inside: both (0.1 - 1)^2 = 0.81, gradient 2 (0.1 - 1) = -1.8
    #   value 0.5  held at 0.2: max(0.25, 0.64) = 0.64, clipped, no gradient
    #   value -1   held at -0.2: max(4, 1.44) = 4, gradient -4
    value = tensor(0.1, 0.5, -1.0, grad=True)
    found = clipped_value_loss(value, tensor(0, 0, 0), tensor(1, 1, 1), clip=0.2)
    assert found.loss_T.tolist() == pytest.approx([0.81, 0.64, 4.0], abs=1e-15)
    assert found.clipped_T.tolist() == [False, True, False]
    found.loss_T.sum().backward()
    assert value.grad.tolist() == pytest.approx([-1.8, 0.0, -4.0], abs=1e-15)


def test_without_a_clip_it_is_the_squared_error():
    found = clipped_value_loss(tensor(0.5, 3.0), tensor(0, 0), tensor(1, 1), clip=0)
    assert found.loss_T.tolist() == [0.25, 4.0]
    assert found.clipped_T.tolist() == [False, False]


def batch(found: torch.Tensor, mask: list[float], **columns: torch.Tensor) -> TokenBatch:
    return TokenBatch(
        log_probs=torch.zeros_like(found),
        entropy=None,
        mask=torch.tensor(mask, dtype=found.dtype),
        sequence=torch.zeros(len(mask), dtype=torch.int64),
        num_sequences=1,
        columns=columns,
        values=found,
    )


def test_the_terms_are_weighted_sums_over_kept_tokens():
    value = tensor(1.0, 2.0, float("nan"), 0.0, grad=True)
    nan = float("nan")
    terms = CriticLoss(0.0)(
        batch(
            value, [1, 1, 0, 1],
            values=tensor(1, 1, nan, 1), returns=tensor(2, 4, nan, 1), loss_weight=tensor(0.5, 0.25, 7, 0),
        )
    )  # fmt: skip
    # squared errors 1, 4, -, 1 with weights 0.5, 0.25, -, 0
    assert float(terms["value_loss"].total) == pytest.approx(1.5)
    terms["value_loss"].total.backward()
    assert value.grad.tolist() == pytest.approx([-1.0, -1.0, 0.0, 0.0])
    assert (float(terms["return"].total), terms["return"].count) == (7.0, 3.0)
    assert float(terms["return_square"].total) == 4 + 16 + 1
    # residuals to the old values: 1, 3, 0
    assert float(terms["value_residual"].total) == 4.0
    assert float(terms["value_residual_square"].total) == 10.0
    assert (float(terms["value"].total), terms["value"].count) == (3.0, 3.0)


def test_clipped_tokens_are_counted_among_kept_ones():
    terms = CriticLoss(0.2)(
        batch(tensor(0.5, 0.5), [1, 0], values=tensor(0, 0), returns=tensor(1, 1), loss_weight=tensor(1, 1))
    )
    assert (float(terms["value_clip_fraction"].total), terms["value_clip_fraction"].count) == (1.0, 1.0)


def test_explained_variance_by_hand():
    # returns 1, 3 (variance 1); residuals 0, 1 (variance 1/4) -> 3/4
    assert explained_variance((1.0, 1.0, 2.0), (4.0, 10.0, 2.0)) == pytest.approx(0.75)
    assert explained_variance((1.0, 1.0, 2.0), (4.0, 8.0, 2.0)) is None  # all returns equal
