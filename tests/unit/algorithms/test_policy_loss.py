# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax.algorithms.policy_loss import MAX_LOG_RATIO, clip_ratio, clipped_policy_loss, safe_exp


def loss_of(ratio, advantage, dtype=torch.float64, **options):
    """Loss, gradient with respect to logp, and the whole result, of one token with the given ratio."""
    logp = torch.tensor([math.log(ratio)], dtype=dtype, requires_grad=True)
    result = clipped_policy_loss(
        logp, torch.zeros(1, dtype=dtype), torch.tensor([advantage], dtype=dtype),
        **({"eps_low": 0.2, "eps_high": 0.28} | options),
    )  # fmt: skip
    result.loss_T.sum().backward()
    return result.loss_T.item(), logp.grad.item(), result


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),  # equal policies: -A
        (1.1, 2.0, -2.2, -2.2),  # inside: d(ratio)/d(logp) = ratio, so gradient = loss
        (1.5, 1.0, -1.28, 0.0),  # ceiling 1.28
        (0.5, 1.0, -0.5, -0.5),  # below the floor with A > 0: the minimum is the free one
        (0.5, -1.0, 0.8, 0.0),  # floor 0.8
        (1.5, -1.0, 1.5, 1.5),  # above the ceiling with A < 0: the free one
    ],
)
def test_loss_and_gradient_worked_by_hand(ratio, advantage, loss, gradient):
    value, slope, _ = loss_of(ratio, advantage)
    assert value == pytest.approx(loss, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)


def test_dual_clip_bounds_the_loss_of_a_bad_token_L17():
    value, slope, result = loss_of(10.0, -1.0, dual_clip=3.0)
    assert value == pytest.approx(3.0, abs=1e-12) and slope == 0.0 and result.dual_clipped_T.item()
    value, slope, result = loss_of(10.0, -1.0)
    assert (
        value == pytest.approx(10.0, abs=1e-12) and slope == pytest.approx(10.0) and not result.dual_clipped_T.item()
    )


def test_at_the_dual_clips_bound_itself_the_token_still_has_its_gradient():
    ratio = torch.tensor([3.0, 3.25], dtype=torch.float64, requires_grad=True)
    bad, never = torch.tensor([-1.0, -1.0], dtype=torch.float64), torch.zeros(2, dtype=torch.bool)
    found = clip_ratio(ratio, never, bad, eps_low=0.2, eps_high=0.2, dual_clip=3.0)
    found.loss_T.sum().backward()
    assert found.dual_clipped_T.tolist() == [False, True]
    assert found.loss_T.tolist() == [3.0, 3.0]
    assert ratio.grad.tolist() == [1.0, 0.0]


def test_a_log_ratio_is_held_at_twenty_nats():
    ratio, held = safe_exp(torch.tensor([20.0, 20.5, -20.5], dtype=torch.float64))
    assert ratio.tolist() == pytest.approx([485165195.40979, 485165195.40979, 2.06115362e-9], rel=1e-9)
    assert held.tolist() == [False, True, True]


def test_dual_clip_leaves_good_tokens_and_near_tokens_alone():
    assert loss_of(10.0, 1.0, dual_clip=3.0)[0] == pytest.approx(-1.28)
    assert loss_of(1.1, -1.0, dual_clip=3.0)[0] == pytest.approx(1.1)


def test_clip_fraction_is_measured_before_the_clip_L24():
    assert loss_of(1.5, 1.0)[2].clipped_T.item()
    assert loss_of(0.5, -1.0)[2].clipped_T.item()
    assert not loss_of(1.5, -1.0)[2].clipped_T.item()
    assert not loss_of(1.1, 1.0)[2].clipped_T.item()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1e4])
def test_an_impossible_ratio_stays_finite_and_is_counted_L21(advantage, log_ratio):
    logp = torch.tensor([log_ratio], dtype=torch.float32, requires_grad=True)
    result = clipped_policy_loss(logp, torch.zeros(1), torch.tensor([advantage]), eps_low=0.2, eps_high=0.2)
    result.loss_T.sum().backward()
    assert torch.isfinite(result.loss_T).all() and torch.isfinite(logp.grad).all()
    assert result.overflow_T.item()
    assert abs(result.loss_T.item()) <= math.exp(MAX_LOG_RATIO) * 1.001


@given(st.floats(-3, 3), st.floats(-2, 2))
def test_equal_policies_give_minus_the_advantage(logp, advantage):
    logp_T = torch.tensor([logp], dtype=torch.float64, requires_grad=True)
    result = clipped_policy_loss(
        logp_T, logp_T.detach(), torch.tensor([advantage], dtype=torch.float64), eps_low=0.2, eps_high=0.2
    )
    result.loss_T.sum().backward()
    assert result.loss_T.item() == -advantage
    assert logp_T.grad.item() == pytest.approx(-advantage, abs=1e-12)


def test_only_the_current_log_prob_gets_a_gradient_L20():
    tensors = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    clipped_policy_loss(tensors[0], tensors[1], tensors[2] + 1.0, eps_low=0.2, eps_high=0.2).loss_T.sum().backward()
    assert tensors[0].grad is not None and tensors[1].grad is None and tensors[2].grad is None
