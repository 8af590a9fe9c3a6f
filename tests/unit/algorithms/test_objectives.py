# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The objectives one token at a time: values by hand, gradients by hand, nothing but the log-probs has one."""

from __future__ import annotations

import math

import pytest
import torch

from relax.algorithms.importance import masked_weights, off_policy_sequence_mask, outlier_sequences, truncated_weights
from relax.algorithms.kl import kl_per_token
from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.policy_loss import MAX_LOG_RATIO, PolicyLoss, PolicyTokens, safe_ratio
from relax.algorithms.spec import ALGOS


def tokens(log_ratios, advantages, *, old=-1.0, sequences=None, columns=None, keep=None) -> PolicyTokens:
    """Tokens with current log-prob old + log-ratio; by default each is a sequence of its own."""
    make = lambda values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    places = list(range(len(log_ratios))) if sequences is None else sequences
    return PolicyTokens(
        logp_T=make([old + x for x in log_ratios]).requires_grad_(),
        old_logp_T=make([old] * len(log_ratios)).requires_grad_(),
        advantage_T=make(advantages).requires_grad_(),
        keep_T=torch.tensor([True] * len(log_ratios) if keep is None else keep),
        sequence_T=torch.tensor(places),
        num_sequences=max(places) + 1,
        columns={name: make(values) for name, values in (columns or {}).items()},
    )


def objective(name: str, given: PolicyTokens, **flags) -> PolicyLoss:
    needs = {"kl_coef": 0.1} if name == "reinforce_plus_plus" else {}
    if name == "reinforce_plus_plus_baseline":
        needs = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k2"}
    options = AlgorithmOptions(advantage_estimator=name, rollout_max_response_len=8, **needs, **flags)
    return options.function(options.spec.policy)(given, options)


def gradient(given: PolicyTokens, policy: PolicyLoss) -> list[float]:
    policy.loss_T.sum().backward()
    return given.logp_T.grad.tolist()


LN = math.log
MINE = sorted(name for name in ALGOS if name != "ppo")


@pytest.mark.parametrize("name", MINE)
def test_only_the_current_log_probs_have_a_gradient_L20(name):
    given = tokens([LN(1.1), LN(0.95)], [1.0, -2.0], columns={"m2_threshold": [0.2, 0.2]})
    policy = objective(name, given)
    policy.loss_T.sum().backward()
    assert given.logp_T.grad.abs().min() > 0
    assert given.old_logp_T.grad is None and given.advantage_T.grad is None
    assert not any(field.requires_grad for field in policy[1:])


@pytest.mark.parametrize("name", MINE)
def test_every_objective_pushes_the_log_prob_with_the_sign_of_the_advantage_and_at_ratio_1_by_its_size(name):
    """d loss / d logp = -A at ratio 1: all of them are REINFORCE there."""
    given = tokens([0.0, 0.0, 0.0], [1.0, -2.0, 0.5], columns={"m2_threshold": [0.1] * 3})
    assert gradient(given, objective(name, given)) == pytest.approx([-1.0, 2.0, -0.5], abs=1e-12)


@pytest.mark.parametrize("name", MINE)
def test_the_ratio_that_is_logged_is_that_of_the_token(name):
    given = tokens([LN(1.5), LN(0.5), 25.0], [1.0] * 3, sequences=[0, 0, 1], columns={"m2_threshold": [0.1] * 3})
    policy = objective(name, given)
    assert policy.ratio_T.tolist() == pytest.approx([1.5, 0.5, math.exp(MAX_LOG_RATIO)])
    assert policy.overflow_T.tolist() == [False, False, True]


def test_grpo_clips_only_where_the_update_would_go_on():
    # eps 0.2 / 0.3. A > 0: 1.5 is held at 1.3; 0.5 is free. A < 0: 0.5 is held at 0.8; 1.5 is free.
    given = tokens([LN(1.5), LN(0.5), LN(0.5), LN(1.5)], [1.0, 1.0, -1.0, -1.0])
    policy = objective("grpo", given, eps_clip=0.2, eps_clip_high=0.3)
    assert policy.loss_T.tolist() == pytest.approx([-1.3, -0.5, 0.8, 1.5], abs=1e-12)
    assert policy.clipped_T.tolist() == [True, False, True, False]
    assert gradient(given, policy) == pytest.approx([0.0, -0.5, 0.0, 1.5], abs=1e-12)


def test_gspo_clips_a_sequence_by_the_geometric_mean_of_its_ratios():
    # sequence 0: ratios 2 and 1/2, mean log-ratio 0, so s = 1: neither token is clipped, though both are far off
    # sequence 1: ratios 1.2 and 1.3, s = sqrt(1.56) = 1.249 > 1.1: both are held at 1.1 and have no gradient
    given = tokens([LN(2.0), LN(0.5), LN(1.2), LN(1.3)], [1.0] * 4, sequences=[0, 0, 1, 1])
    policy = objective("gspo", given, eps_clip=0.1)
    assert policy.loss_T.tolist() == pytest.approx([-1.0, -1.0, -1.1, -1.1], abs=1e-12)
    assert policy.clipped_T.tolist() == [False, False, True, True]
    assert gradient(given, policy) == pytest.approx([-1.0, -1.0, 0.0, 0.0], abs=1e-12)


def test_gspo_means_over_trained_tokens_alone():
    # the token in the middle is an observation with a ratio of e^0: counted, s would be 1.2^(2/3)
    given = tokens([LN(1.2), 0.0, LN(1.2)], [-1.0, 0.0, -1.0], sequences=[0, 0, 0], keep=[True, False, True])
    policy = objective("gspo", given, eps_clip=0.5)
    assert policy.loss_T.tolist()[::2] == pytest.approx([1.2, 1.2], abs=1e-12)
    assert gradient(given, policy)[::2] == pytest.approx([1.2, 1.2], abs=1e-12)


def test_gspo_with_the_dual_clip():
    given = tokens([LN(4.0)], [-1.0])
    policy = objective("gspo", given, eps_clip_c=3.0)
    assert (policy.loss_T.tolist(), policy.dual_clipped_T.tolist()) == ([3.0], [True])
    assert gradient(given, policy) == [0.0]


def test_sapo_is_a_gate_whose_gradient_fades_on_both_sides():
    # tau 2 for A > 0: at ratio 1.5 p = sigmoid(1), loss -2 p, slope -4 p (1 - p) ratio
    p, q = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(2.0))
    given = tokens([LN(1.5), LN(0.5), 0.0], [1.0, -3.0, 0.0])
    policy = objective("sapo", given, sapo_tau_pos=2.0, sapo_tau_neg=4.0)
    assert policy.loss_T.tolist() == pytest.approx([-2.0 * p, 3.0 * q, 0.0], abs=1e-12)
    assert gradient(given, policy) == pytest.approx(
        [-4 * p * (1 - p) * 1.5, 3.0 * 4 * q * (1 - q) * 0.5, 0.0], abs=1e-12
    )


def test_sapo_counts_a_token_as_clipped_when_the_gate_leaves_less_than_nine_tenths():
    # 4 p (1 - p) = 1 - tanh(x / 2)^2 with x = ratio - 1: 0.9 at x = 2 atanh(sqrt(0.1)) = 0.6549
    given = tokens([LN(1.65), LN(1.66), 0.0], [1.0] * 3)
    assert objective("sapo", given, sapo_tau_pos=1.0).clipped_T.tolist() == [False, True, False]


def test_sapo_takes_the_negative_tau_at_advantage_zero():
    given = tokens([LN(1.3)], [0.0])
    # tau 1: 1 - tanh(0.15)^2 = 0.978 is open; tau 5: 1 - tanh(0.75)^2 = 0.597 is not
    assert objective("sapo", given, sapo_tau_pos=1.0, sapo_tau_neg=5.0).clipped_T.tolist() == [True]


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    # A >= 0: min(ratio, 1.2); A < 0: max(ratio, 0.8). loss -c A logp with logp = -1 + log ratio, slope -c A
    ratios, advantages = [1.5, 0.5, 1.5, 0.5], [2.0, 2.0, -2.0, -2.0]
    given = tokens([LN(r) for r in ratios], advantages)
    policy = objective("cispo", given, eps_clip=0.2)
    weights = [1.2, 0.5, 1.5, 0.8]
    assert policy.loss_T.tolist() == pytest.approx(
        [-c * a * (-1 + LN(r)) for c, a, r in zip(weights, advantages, ratios, strict=True)], abs=1e-12
    )
    assert policy.clipped_T.tolist() == [True, False, False, True]
    assert not policy.dual_clipped_T.any()
    assert gradient(given, policy) == pytest.approx([-2.4, -1.0, 3.0, 1.6], abs=1e-12)


def test_cispo_bounds_a_negative_advantage_from_above_by_the_dual_clip_alone():
    given = tokens([LN(5.0), LN(5.0)], [-1.0, 1.0])
    policy = objective("cispo", given, eps_clip_high=9.0, eps_clip_c=2.0)
    assert policy.dual_clipped_T.tolist() == [True, False]
    assert gradient(given, policy) == pytest.approx([2.0, -5.0], abs=1e-12)


def test_the_dual_clip_of_cispo_counts_negative_advantages_beyond_it_alone():
    given = tokens([LN(5.0)] * 4, [-1.0, 0.0, 0.5, -1.0])
    policy = objective("cispo", given, eps_clip_high=9.0, eps_clip_c=2.0)
    assert policy.dual_clipped_T.tolist() == [True, False, False, True]
    ratio = float(policy.ratio_T[0])  # a token exactly on the bound is not beyond it
    assert not objective("cispo", given, eps_clip_high=9.0, eps_clip_c=ratio).dual_clipped_T.any()


def test_cispo_bounds_the_ratio_at_advantage_zero_from_above():
    given = tokens([LN(0.5), LN(1.5)], [0.0, 0.0])
    assert objective("cispo", given, eps_clip=0.2).clipped_T.tolist() == [False, True]


def test_rloo_is_the_score_function():
    given = tokens([LN(7.0), 0.0], [1.5, -2.0])
    policy = objective("rloo", given)
    assert policy.loss_T.tolist() == pytest.approx([-1.5 * (-1 + LN(7.0)), -2.0], abs=1e-12)
    assert not policy.clipped_T.any() and not policy.dual_clipped_T.any()
    assert gradient(given, policy) == pytest.approx([-1.5, 2.0], abs=1e-12)


def test_m2po_clips_at_what_the_threshold_of_the_step_says_and_never_closer_than_the_floors():
    # tau 0.8: eps 1 - e^-0.8 = 0.5507, eps_high e^0.8 - 1 = 1.2255
    far = tokens([LN(3.0), LN(0.3)], [1.0, -1.0], columns={"m2_threshold": [0.8, 0.8]})
    assert objective("m2po", far).loss_T.tolist() == pytest.approx([-math.exp(0.8), math.exp(-0.8)], abs=1e-12)
    # tau 0.01: the floors 0.3 and 0.5 decide
    near = tokens([LN(3.0), LN(0.3)], [1.0, -1.0], columns={"m2_threshold": [0.01, 0.01]})
    policy = objective("m2po", near)
    assert policy.loss_T.tolist() == pytest.approx([-1.5, 0.7], abs=1e-12)
    assert policy.clipped_T.tolist() == [True, True]
    dual = tokens([LN(3.0)], [-1.0], columns={"m2_threshold": [0.01]})
    assert objective("m2po", dual, eps_clip_c=2.0).loss_T.tolist() == [2.0]


# ------------------------------------------------------------------ corrections


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("function", [truncated_weights, masked_weights])
def test_importance_weights_have_no_gradient_and_count_before_they_are_cut_L24(function):
    # ratios 0.5, 3, 1: cap 2 and floor 0.6 cut the first two
    found = function(column(LN(0.5), LN(3.0), 0.0), column(0.0, 0.0, 0.0), torch.ones(3), low=0.6, high=2.0)
    assert not any(field.requires_grad for field in found)
    assert found.raw_T.tolist() == pytest.approx([0.5, 3.0, 1.0])
    assert found.clipped_T.tolist() == [True, True, False]
    cut = [0.6, 2.0, 1.0] if function is truncated_weights else [0.0, 0.0, 1.0]
    assert found.weight_T.tolist() == pytest.approx(cut)


@pytest.mark.parametrize("function", [truncated_weights, masked_weights])
def test_a_weight_on_its_bound_is_inside(function):
    found = function(column(0.0, 0.0), column(0.0, 0.0), torch.ones(2), low=1.0, high=1.0)
    assert found.clipped_T.tolist() == [False, False] and found.weight_T.tolist() == [1.0, 1.0]


def test_opsm_masks_bad_sequences_that_have_become_less_likely():
    # means of old - new over trained tokens: 0.2 (sequence 0), -0.2 (1), 0.1 exactly (2); delta 0.1
    old, new = column(-1.0, -1.0, -1.0, -1.0), column(-1.2, -0.8, -1.1, -9.0)
    keep, sequence = torch.tensor([True, True, True, False]), torch.tensor([0, 1, 2, 0])
    delta = float((old - new).detach()[2])
    for sign, expected in ((-1.0, [0.0, 1.0, 1.0, 0.0]), (1.0, [1.0] * 4), (0.0, [1.0] * 4)):
        found = off_policy_sequence_mask(new, old, column(*[sign] * 4), keep, sequence, 3, delta=delta)
        assert found.tolist() == expected and not found.requires_grad


def test_an_outlier_is_a_sequence_whose_mean_gap_is_above_the_limit_whatever_its_sign():
    trainer, engine = column(-1.0, -1.0, -1.0, -1.0), column(-3.0, 1.0, -2.0, -1.5)
    sequence, keep = torch.tensor([0, 1, 2, 2]), torch.tensor([True] * 4)
    # gaps 2, 2, and (1 + 0.5) / 2 = 0.75
    assert outlier_sequences(trainer, engine, keep, sequence, 3, limit=1.0).tolist() == [True, True, False]
    assert outlier_sequences(trainer, engine, keep, sequence, 3, limit=0.75).tolist() == [True, True, False]


def test_a_sequence_without_trained_tokens_is_no_outlier():
    found = outlier_sequences(column(-1.0), column(-9.0), torch.tensor([False]), torch.tensor([0]), 2, limit=0.0)
    assert found.tolist() == [False, False]


def test_a_reference_never_gets_a_gradient_and_a_held_ratio_has_none():
    logp, ref = column(-1.0, -2.0), column(-1.5, -1.0)
    kl_per_token(logp, ref, estimator="k3").sum().backward()
    assert ref.grad is None and logp.grad is not None
    current = column(MAX_LOG_RATIO + 1.0, MAX_LOG_RATIO, -MAX_LOG_RATIO - 1.0)
    ratio, held = safe_ratio(current, column(0.0, 0.0, 0.0))
    ratio.sum().backward()
    assert held.tolist() == [True, False, True]
    assert current.grad.tolist() == pytest.approx([0.0, math.exp(MAX_LOG_RATIO), 0.0])
