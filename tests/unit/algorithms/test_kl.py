# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Expected gradients by enumeration of a categorical of three tokens, against autograd of the closed forms."""

import pytest
import torch

from relax.algorithms.kl import ESTIMATORS, LOW_VAR_LIMIT, kl_per_token

LOGITS = torch.tensor([0.3, -0.4, 0.9], dtype=torch.float64)
OLD_LOGITS = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([-0.5, 0.7, 0.2], dtype=torch.float64), 0)


def expected_gradient(estimator, *, sampler=None, ratio=False, reference=REFERENCE):
    """E over tokens drawn from `sampler` (a fixed distribution) of the gradient of the estimator."""
    logits = LOGITS.clone().requires_grad_()
    logp = torch.log_softmax(logits, 0)
    drawn = (logp if sampler is None else sampler).detach()
    ratio_T = torch.exp(logp - drawn) if ratio else None
    value = kl_per_token(logp, reference, estimator=estimator, ratio_T=ratio_T)
    (drawn.exp() * value).sum().backward()
    return logits.grad


def closed_form(objective):
    logits = LOGITS.clone().requires_grad_()
    objective(torch.log_softmax(logits, 0)).backward()
    return logits.grad


def kl_policy_reference(logp):
    return (logp.exp() * (logp - REFERENCE)).sum()


def kl_reference_policy(logp):
    return (REFERENCE.exp() * (REFERENCE - logp)).sum()


def half_square(logp):
    return (logp.exp() * 0.5 * (logp - REFERENCE).square()).sum()


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_k1_as_a_loss_has_no_expected_gradient_L18():
    same(expected_gradient("k1"), torch.zeros(3, dtype=torch.float64))


def test_k2_minimises_kl_of_policy_to_reference_L18():
    same(expected_gradient("k2"), closed_form(kl_policy_reference))


@pytest.mark.parametrize("estimator", ["k3", "low_var_kl"])
def test_k3_minimises_kl_of_reference_to_policy_L18(estimator):
    same(expected_gradient(estimator), closed_form(kl_reference_policy))


@pytest.mark.parametrize("estimator", ["k1", "k3", "low_var_kl"])
@pytest.mark.parametrize("sampler", [None, torch.log_softmax(OLD_LOGITS, 0)], ids=["on_policy", "off_policy"])
def test_unbiased_variant_minimises_kl_of_policy_to_reference_also_off_policy_L18(estimator, sampler):
    same(expected_gradient(estimator, sampler=sampler, ratio=True), closed_form(kl_policy_reference))


def test_unbiased_k2_minimises_the_expected_square_L18():
    same(expected_gradient("k2", ratio=True), closed_form(half_square))


def test_low_var_kl_has_no_gradient_on_a_held_token_but_the_score_part_of_the_unbiased_one_stays_L18():
    # x = -5 gives k3 = exp(5) - 6 = 142 > 10: held
    logp = torch.tensor([-6.0], dtype=torch.float64, requires_grad=True)
    kl_per_token(logp, torch.tensor([-1.0], dtype=torch.float64), estimator="low_var_kl").sum().backward()
    assert logp.grad.item() == 0.0
    logp.grad = None
    value = kl_per_token(
        logp,
        torch.tensor([-1.0], dtype=torch.float64),
        estimator="low_var_kl",
        ratio_T=torch.exp(logp - logp.detach()),
    )
    value.sum().backward()
    assert logp.grad.item() == LOW_VAR_LIMIT  # d ratio / d logp = 1, times the held value


@pytest.mark.parametrize("estimator", ["k1", "k3", "low_var_kl"])
def test_expected_value_is_kl_of_policy_to_reference(estimator):
    logp = torch.log_softmax(LOGITS, 0)
    value = (logp.exp() * kl_per_token(logp, REFERENCE, estimator=estimator)).sum()
    assert value.item() == pytest.approx(kl_policy_reference(logp).item(), abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("x", [200.0, -200.0])
def test_an_impossible_token_stays_finite(estimator, x):
    logp = torch.tensor([x], dtype=torch.float32, requires_grad=True)
    value = kl_per_token(logp, torch.zeros(1), estimator=estimator)
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(logp.grad).all()


def test_the_reference_gets_no_gradient_L20():
    logp, reference = (torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    kl_per_token(logp, reference, estimator="k3").sum().backward()
    assert logp.grad is not None and reference.grad is None


def test_unknown_estimator_lists_the_known_ones_L25():
    with pytest.raises(ValueError, match="k1, k2, k3, low_var_kl"):
        kl_per_token(torch.zeros(1), torch.zeros(1), estimator="kl")


def test_the_held_estimator_is_held_at_ten_nats():
    # x = -3: e^3 - 1 - 3 = 16.09; x = -2.5: e^2.5 - 1 - 2.5 = 8.68 is below
    x = torch.tensor([-3.0, -2.5], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)
    assert kl_per_token(x, zero, estimator="low_var_kl").tolist() == pytest.approx([10.0, 8.682493960703473])
