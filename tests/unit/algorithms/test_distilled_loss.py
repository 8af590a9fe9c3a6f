# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The teacher's term around a policy loss: both modes by hand."""

from __future__ import annotations

import math

import pytest
import torch

from relax.algorithms.distillation import divergence
from relax.algorithms.distillation_options import DistillationOptions
from relax.algorithms.distilled_loss import DistilledLoss
from relax.algorithms.loss import Term, TokenBatch
from relax.algorithms.reduce import masked


class PolicyGradient:
    """-A logp, weighted; the advantages that it saw are kept."""

    needs = frozenset({"log_probs"})
    objective = ("policy_loss",)

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        self.advantages = batch.columns["advantages"].tolist()
        terms = -batch.columns["advantages"] * masked(batch.log_probs, batch.mask > 0) * batch.columns["loss_weight"]
        count = float(batch.mask.sum())
        return {"policy_loss": Term(terms.sum(), count), "loss": Term(terms.sum().detach(), count)}


def tokens(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch(log_probs: torch.Tensor, at: torch.Tensor | None = None, **columns: torch.Tensor) -> TokenBatch:
    size = len(log_probs)
    mask = torch.ones(size, dtype=torch.float64)
    mask[-1] = 0.0
    own = {
        "advantages": tokens(*[1.0] * size),
        "loss_weight": tokens(*[0.5] * size),
        **columns,
    }
    return TokenBatch(log_probs, None, mask, torch.zeros(size, dtype=torch.int64), 1, own, log_probs_at=at)


def loss(sampled_from: str | None = "rollout_logprobs", **options) -> DistilledLoss:
    return DistilledLoss(PolicyGradient(), DistillationOptions(**options), sampled_from)


NAN = math.nan


def test_in_advantage_mode_the_sampled_divergence_is_taken_off_the_advantage():
    # log p - log q under the sampling policy: -1 - (-3) = 2 and -2 - (-1.5) = -0.5; coefficient 0.1
    made = loss(kl_coef=0.1)
    current = tokens(-0.9, -2.2, NAN).requires_grad_(True)
    terms = made(batch(current, rollout_logprobs=tokens(-1, -2, NAN), teacher_logprobs=tokens(-3, -1.5, NAN)))
    assert made.base.advantages[:2] == pytest.approx([0.8, 1.05])
    assert made.objective == ("policy_loss",)
    assert (float(terms["opd_kl"].total), terms["opd_kl"].count) == (pytest.approx(1.5), 2.0)
    assert not terms["opd_kl"].total.requires_grad


def test_true_on_policy_the_current_log_prob_is_the_one_sampled_from():
    made = loss(None, kl_coef=1.0, only=True)
    made(batch(tokens(-1, -2, 0), teacher_logprobs=tokens(-3, -1.5, 0)))
    assert made.base.advantages[:2] == pytest.approx([-2.0, 0.5])  # the reward's advantage counts as 0


def test_the_divergence_of_a_token_is_held():
    made = loss(kl_coef=1.0, only=True, per_token_clip=0.4)
    made(batch(tokens(-1, -2, 0), rollout_logprobs=tokens(-1, -2, 0), teacher_logprobs=tokens(-3, -1.5, 0)))
    assert made.base.advantages[:2] == pytest.approx([-0.4, 0.4])


@pytest.mark.parametrize("kind", ["reverse_kl", "low_var_kl"])
def test_the_expected_gradient_of_the_advantage_mode(kind):
    """Of KL(p, q); with low_var_kl less that of KL(q, p), since the ratio q / p weighs the score function as well."""
    logits = torch.tensor([0.3, -1.2, 0.9, 0.1], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    log_p = logits.log_softmax(0)
    p = log_p.detach().exp()
    columns = {
        "rollout_logprobs": log_p.detach(),
        "teacher_logprobs": q.log(),
        "loss_weight": p,
    }  # every id, by chance
    padded = {name: torch.cat([values, tokens(NAN)]) for name, values in columns.items()}
    terms = loss(kl_coef=1.0, only=True, kl_type=kind)(batch(torch.cat([log_p, tokens(NAN)]), **padded))
    (found,) = torch.autograd.grad(terms["policy_loss"].total, logits, retain_graph=True)
    (right,) = torch.autograd.grad((log_p.exp() * (log_p - q.log())).sum(), logits, retain_graph=True)
    if kind == "low_var_kl":
        right = right - torch.autograd.grad((q * (q.log() - log_p)).sum(), logits)[0]
    assert found.tolist() == pytest.approx(right.tolist(), abs=1e-12)


def test_in_loss_mode_it_is_a_term_with_the_ratio_and_its_gradient():
    # ratio r = exp(current - sampled): e^0.1, e^-0.2; k = current - teacher: 2.1, -0.7; term 0.3 * r k * weight 0.5
    current = tokens(-0.9, -2.2, NAN).requires_grad_(True)
    made = loss(kl_coef=0.0, loss_coef=0.3)
    terms = made(batch(current, rollout_logprobs=tokens(-1, -2, NAN), teacher_logprobs=tokens(-3, -1.5, NAN)))
    right = 0.3 * 0.5 * (math.exp(0.1) * 2.1 + math.exp(-0.2) * -0.7)
    assert float(terms["opd_loss"].total.detach()) == pytest.approx(right)
    assert made.objective == ("policy_loss", "opd_loss")
    terms["opd_loss"].total.backward()
    # d (r k) = r (k + 1)
    assert current.grad[:2].tolist() == pytest.approx([0.15 * math.exp(0.1) * 3.1, 0.15 * math.exp(-0.2) * 0.3])
    assert float(current.grad[2]) == 0.0
    assert float(terms["loss"].total) == pytest.approx(float(terms["policy_loss"].total) + right)
    assert made.base.advantages[:2] == [1.0, 1.0]


def test_the_ratio_is_held_where_it_weighs_the_sampled_form():
    current = tokens(-0.5, -2.2, 0).requires_grad_(True)
    columns = {"rollout_logprobs": tokens(-1, -2, 0), "teacher_logprobs": tokens(-3, -1.5, 0)}
    terms = loss(kl_coef=0.0, loss_coef=1.0, is_clip=1.2)(batch(current, **columns))
    right = 0.5 * (1.2 * 2.5 + math.exp(-0.2) * -0.7)  # e^0.5 > 1.2
    assert float(terms["opd_loss"].total.detach()) == pytest.approx(right)


def test_with_ids_it_is_the_divergence_over_them_and_repeated_ones_count_once():
    generator = torch.Generator().manual_seed(2)
    student = torch.log_softmax(torch.randn(3, 6, generator=generator, dtype=torch.float64), 1)
    teacher = torch.log_softmax(torch.randn(3, 6, generator=generator, dtype=torch.float64), 1)
    ids = torch.tensor([[0, 4, 0], [5, 1, 5], [2, 3, 2]])
    at = student.gather(1, ids).requires_grad_(True)
    made = loss(kl_coef=0.0, loss_coef=1.0, token_selection="union", top_k=3, kl_type="jsd", norm_mode="norm")
    assert made.needs == {"log_probs", "log_probs_at"}
    columns = {"at_ids": ids.double(), "teacher_at_logprobs": teacher.gather(1, ids)}
    terms = made(batch(tokens(-1, -1, -1), at, **columns))
    once = ids[:, :2]
    right = divergence(student.gather(1, once), teacher.gather(1, once), kind="jsd", norm="norm")
    assert float(terms["opd_kl"].total) == pytest.approx(float(right[:2].sum()))
    terms["opd_loss"].total.backward()
    assert at.grad[2].abs().max() == 0.0
    assert at.grad[:2, :2].abs().max() > 0
