# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Divergences from a teacher in float64: closed forms, limits, expectations over a whole vocabulary, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relax.algorithms.distillation import FLOOR, divergence, repeated, sampled_divergence

LOGITS = torch.tensor([[0.3, -1.2, 0.8, 0.0], [2.0, 0.1, -0.5, 0.4]], dtype=torch.float64)
TEACHER = torch.log_softmax(torch.tensor([[1.0, 0.2, -0.3, 0.1], [0.0, 0.0, 1.5, -2.0]], dtype=torch.float64), 1)


def student(logits: torch.Tensor = LOGITS) -> torch.Tensor:
    return torch.log_softmax(logits, 1)


def by_hand(kind: str, p: np.ndarray, q: np.ndarray, alpha: float = 0.5) -> float:
    """Sums written out, with plain logarithms."""
    if kind == "reverse_kl":
        return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    if kind == "forward_kl":
        return math.fsum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    m = [alpha * a + (1 - alpha) * b for a, b in zip(p, q, strict=True)]
    return math.fsum(
        alpha * b * math.log(b / c) + (1 - alpha) * a * math.log(a / c) for a, b, c in zip(p, q, m, strict=True)
    )


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
@pytest.mark.parametrize("norm", ["tail", "norm", "trunc"])
def test_over_all_ids_it_is_the_sum_written_out_whatever_the_norm(kind, norm):
    found = divergence(student(), TEACHER, kind=kind, norm=norm, jsd_alpha=0.3)
    for row in range(2):
        p, q = student()[row].exp().numpy(), TEACHER[row].exp().numpy()
        assert float(found[row]) == pytest.approx(by_hand(kind, p, q, 0.3), abs=1e-12)


def test_two_ids_by_hand():
    # p = (1/2, 1/2), q = (1/4, 3/4): KL(p|q) = ln 2/2 + ln(2/3)/2 = ln(4/3)/2; KL(q|p) = ln(1/2)/4 + 3 ln(3/2)/4
    p, q = torch.tensor([[0.5, 0.5]]).double().log(), torch.tensor([[0.25, 0.75]]).double().log()
    assert float(divergence(p, q, kind="reverse_kl", norm="norm")) == pytest.approx(math.log(4 / 3) / 2)
    right = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert float(divergence(p, q, kind="forward_kl", norm="norm")) == pytest.approx(right)


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_what_is_left_of_the_mass_is_a_bucket_renormalised_or_dropped(kind):
    ids = torch.tensor([[2, 0], [1, 3]])
    p, q = student().gather(1, ids), TEACHER.gather(1, ids)
    for row in range(2):
        a, b = p[row].exp().numpy(), q[row].exp().numpy()
        tail = by_hand(kind, np.append(a, 1 - a.sum()), np.append(b, 1 - b.sum()))
        assert float(divergence(p, q, kind=kind, norm="tail")[row]) == pytest.approx(tail, abs=1e-12)
        norm = by_hand(kind, a / a.sum(), b / b.sum())
        assert float(divergence(p, q, kind=kind, norm="norm")[row]) == pytest.approx(norm, abs=1e-12)
        assert float(divergence(p, q, kind=kind, norm="trunc")[row]) == pytest.approx(by_hand(kind, a, b), abs=1e-12)


def test_the_ends_of_the_jsd_are_the_kls_and_between_it_is_continuous():
    for alpha, kind in ((0.0, "reverse_kl"), (1.0, "forward_kl")):
        end = divergence(student(), TEACHER, kind=kind)
        assert torch.equal(divergence(student(), TEACHER, kind="jsd", jsd_alpha=alpha), end)
        near = divergence(student(), TEACHER, kind="jsd", jsd_alpha=abs(alpha - 1e-9))
        assert near.tolist() == pytest.approx(end.tolist(), abs=1e-7)


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
@pytest.mark.parametrize("norm", ["tail", "norm", "trunc"])
@pytest.mark.parametrize("columns", [[0, 1, 2, 3], [2, 0]])
def test_gradients_are_those_of_finite_differences(kind, norm, columns):
    logits = LOGITS.clone().requires_grad_(True)
    function = lambda x: divergence(student(x)[:, columns], TEACHER[:, columns], kind=kind, norm=norm)  # noqa: E731
    assert torch.autograd.gradcheck(function, logits, eps=1e-6, atol=1e-8)


def test_a_student_that_is_its_teacher_has_no_divergence_and_no_gradient():
    for kind in ("reverse_kl", "forward_kl", "jsd"):
        logits = LOGITS.clone().requires_grad_(True)
        found = divergence(student(logits), student().detach(), kind=kind)
        assert found.tolist() == pytest.approx([0.0, 0.0], abs=1e-15)
        found.sum().backward()
        assert logits.grad.abs().max() < 1e-15


def test_sampled_forms_have_the_expected_value_of_the_reverse_kl():
    for kind in ("reverse_kl", "low_var_kl"):
        for row in range(2):
            tokens = sampled_divergence(student()[row], TEACHER[row], kind=kind)
            expected = float((student()[row].exp() * tokens).sum())
            right = by_hand("reverse_kl", student()[row].exp().numpy(), TEACHER[row].exp().numpy())
            assert expected == pytest.approx(right, abs=1e-12)
    assert (sampled_divergence(student()[0], TEACHER[0], kind="low_var_kl") >= 0).all()


@pytest.mark.parametrize("kind", ["reverse_kl", "low_var_kl"])
def test_with_the_ratio_the_expected_gradient_is_that_of_the_reverse_kl_and_without_it_is_not(kind):
    logits = LOGITS[:1].clone().requires_grad_(True)
    (right,) = torch.autograd.grad(divergence(student(logits), TEACHER[:1], kind="reverse_kl").sum(), logits)
    logp = student(logits)[0]
    ratio = (logp - logp.detach()).exp()
    weight = logp.detach().exp()  # the chance of each token: an enumerated expectation
    with_ratio = (weight * sampled_divergence(logp, TEACHER[0], kind=kind, ratio_T=ratio)).sum()
    (found,) = torch.autograd.grad(with_ratio, logits, retain_graph=True)
    assert found.tolist() == [pytest.approx(right[0].tolist(), abs=1e-12)]
    (plain,) = torch.autograd.grad((weight * sampled_divergence(logp, TEACHER[0], kind=kind)).sum(), logits)
    forward = torch.autograd.grad(divergence(student(logits), TEACHER[:1], kind="forward_kl").sum(), logits)[0]
    assert plain[0].tolist() == pytest.approx([0.0] * 4 if kind == "reverse_kl" else forward[0].tolist(), abs=1e-12)


def test_an_id_that_stands_twice_counts_once():
    ids = torch.tensor([[2, 0, 2], [1, 3, 1]])
    again = repeated(ids)
    assert again.tolist() == [[False, False, True]] * 2
    p, q = student().gather(1, ids), TEACHER.gather(1, ids)
    for norm in ("tail", "norm", "trunc"):
        once = divergence(p[:, :2], q[:, :2], kind="jsd", norm=norm)
        assert divergence(p, q, kind="jsd", norm=norm, valid_TK=~again).tolist() == pytest.approx(once.tolist())


def test_an_impossible_id_stays_finite_and_rounding_above_one_is_no_tail():
    p = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    q = torch.tensor([[-math.inf, 0.0]], dtype=torch.float64)
    assert float(divergence(p, q, kind="reverse_kl", norm="norm")) == pytest.approx(-FLOOR, rel=1e-6)
    full = torch.log_softmax(torch.randn(5, 50, generator=torch.Generator().manual_seed(0)), 1).requires_grad_(True)
    found = divergence(full, full.detach().flip(0), kind="reverse_kl", norm="tail")
    assert torch.isfinite(found).all()
    found.sum().backward()
    assert torch.isfinite(full.grad).all()


def test_unknown_words_list_the_known_ones():
    with pytest.raises(ValueError, match="known are reverse_kl, forward_kl, jsd"):
        divergence(student(), TEACHER, kind="kl")
    with pytest.raises(ValueError, match="known are tail, norm, trunc"):
        divergence(student(), TEACHER, kind="jsd", norm="rest")
    with pytest.raises(ValueError, match="known are reverse_kl, low_var_kl"):
        sampled_divergence(student()[0], TEACHER[0], kind="jsd")
