# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Numbers that explain a step, by hand: histogram of ratios, clip fractions, mismatch, gradients of the terms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks.papers.responses import example_step
from relax.algorithms.diagnostics import RATIO_EDGES, gradient_terms, mismatch_values, policy_values, range_names
from relax.algorithms.importance import ImportanceWeights
from relax.algorithms.loss import Term, TokenBatch
from relax.algorithms.options import AlgorithmOptions, build_loss
from relax.algorithms.policy_loss import PolicyLoss
from relax.algorithms.reduce import gradient_norms
from relax.utils.metrics import find_spec
from tests.unit.algorithms.theta import prepared, run_step

STEP = example_step(5)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_histogram_has_a_name_for_each_range_and_every_token_is_in_one():
    assert range_names((0.5, 1.0, 2.0)) == ("below_0.5", "0.5_1", "1_2", "above_2")
    ratios = column(0.1, 0.5, 0.6, 0.9, 1.0, 1.2, 1.3, 2.0, 9.0)
    no = torch.zeros(9, dtype=torch.bool)
    values = policy_values(PolicyLoss(ratios, ratios, no, no, no), ratios.log(), ratios)
    counts = [int(values[f"ratio_fraction/{name}"].sum()) for name in range_names()]
    # an edge belongs to the range below it
    assert dict(zip(range_names(), counts, strict=True)) == {
        "below_0.5": 2, "0.5_0.8": 1, "0.8_0.95": 1, "0.95_1.05": 1, "1.05_1.25": 1, "1.25_2": 2, "above_2": 1,
    }  # fmt: skip
    assert sum(counts) == 9 and len(RATIO_EDGES) == 6


def test_values_of_the_policy_are_those_of_the_loss():
    ratio, yes, no = column(2.0), torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
    values = policy_values(PolicyLoss(ratio, ratio, yes, no, no), column(math.log(2.0)), column(-3.0))
    assert values["approx_kl"].item() == pytest.approx(2.0 - 1.0 - math.log(2.0), abs=1e-12)
    assert values["advantage_abs"].item() == 3.0 and values["ratio"].item() == 2.0
    assert values["clip_fraction"].item() and not values["dual_clip_fraction"].item()
    assert not values["ratio_overflow_fraction"].item()


def test_the_mismatch_is_of_the_current_policy_against_the_engine():
    values = mismatch_values(column(-1.0, -2.0).requires_grad_(), column(-1.0 - math.log(3.0), -1.5))
    assert values["importance"].tolist() == pytest.approx([3.0, math.exp(-0.5)])
    assert values["importance_square"].tolist() == pytest.approx([9.0, math.exp(-1.0)])
    assert values["log_prob_difference_abs"].tolist() == pytest.approx([math.log(3.0), 0.5])
    assert not any(value.requires_grad for value in values.values())


def batch_of(logp: torch.Tensor, entropy: torch.Tensor | None) -> TokenBatch:
    return TokenBatch(logp, entropy, torch.ones(2), torch.zeros(2).long(), 1, {})


def test_the_pull_of_a_term_is_the_square_of_its_derivatives():
    # 3 x0 + x1^2 at (1, 2): derivatives 3 and 4; the entropy term has 5 and 0 by entropy
    logp, entropy = column(1.0, 2.0).requires_grad_(), column(1.0, 1.0).requires_grad_()
    terms = {
        "policy_loss": Term(3 * logp[0] + logp[1] ** 2, 2.0),
        "entropy_loss": Term(5 * entropy[0], 1.0),
        "ratio": Term(logp.sum().detach(), 2.0),
    }
    found = gradient_terms(terms, ("policy_loss", "entropy_loss"), batch_of(logp, entropy))
    assert {name: (float(term.total), term.count) for name, term in found.items()} == {
        "gradient_square/policy_loss": (25.0, 2.0), "gradient_square/entropy_loss": (25.0, 1.0),
    }  # fmt: skip
    assert not any(term.total.requires_grad for term in found.values())
    terms["policy_loss"].total.backward()  # the graph is still there for the backend
    assert logp.grad.tolist() == [3.0, 4.0]
    assert gradient_norms({"gradient_square/policy_loss": 25.0, "ratio": 9.0}, 2.0) == {"policy_loss": 2.5}


def test_without_a_gradient_there_is_nothing_to_measure():
    plain = {"policy_loss": Term(column(1.0).sum(), 1.0)}
    assert gradient_terms(plain, ("policy_loss",), batch_of(column(1.0, 2.0), None)) == {}
    assert gradient_terms(plain, ("policy_loss",), batch_of(column(1.0, 2.0).requires_grad_(), None)) == {}


@pytest.mark.parametrize("parts", [[range(8)], [[0, 1], [2, 3, 4], [5, 6, 7]], [[p] for p in range(8)]])
def test_the_pull_of_the_terms_of_a_step_adds_up_over_micro_batches(parts):
    flags = {"use_kl_loss": True, "kl_loss_coef": 0.2, "kl_loss_type": "k2", "entropy_coef": 0.1}
    options = AlgorithmOptions(**flags)
    found = run_step(STEP, options, parts)
    columns, divisor = prepared(STEP, options)
    pull = [0.2 * (r.logp - r.ref_logprobs) * c["loss_weight"] for r, c in zip(STEP, columns, strict=True)]
    bonus = [0.1 * c["loss_weight"] for c in columns]
    for name, by_token in (("kl_loss", pull), ("entropy_loss", bonus)):
        expected = math.sqrt(sum(float((values**2).sum()) for values in by_token)) / divisor
        assert found.norms[name] == pytest.approx(expected, abs=1e-12)
    alone = run_step(STEP, AlgorithmOptions(), [range(8)])
    squares = sum(float((values**2).sum()) for values in alone.by_logp.values())
    assert found.norms["policy_loss"] == pytest.approx(math.sqrt(squares), abs=1e-12)


def test_every_name_of_a_step_is_declared():
    flags = {"use_kl_loss": True, "kl_loss_coef": 0.2, "entropy_coef": 0.1, "use_opsm": True, "old_log_probs": "old"}
    found = run_step(STEP, AlgorithmOptions(**flags, use_tis=True, logprob_outlier_limit=9.0), [range(8)])
    for name in found.means:
        if not name.startswith("gradient_square/"):
            find_spec(f"train/{name}")
    for name in found.norms:
        find_spec(f"train/gradient_norm/{name}")
    assert {"ratio_fraction/0.95_1.05", "kl_ref", "kl_loss", "tis_clip_fraction"} <= found.means.keys()


def test_the_raw_kl_is_logged_beside_the_penalised_one_and_under_a_kl_in_the_reward_too_L25():
    kept = np.concatenate([(r.logp - r.ref_logprobs)[r.trained] for r in STEP])
    loss = AlgorithmOptions(use_kl_loss=True, kl_loss_coef=0.2)
    assert run_step(STEP, loss, [range(8)]).means["kl_ref"] == pytest.approx(kept.mean(), abs=1e-12)
    reward = AlgorithmOptions(advantage_estimator="reinforce_plus_plus", kl_coef=0.1)
    means = run_step(STEP, reward, [range(8)]).means
    assert means["kl_ref"] == pytest.approx(kept.mean(), abs=1e-12) and "kl_loss" not in means


def test_the_divergence_from_the_old_policy_is_that_of_the_step():
    gaps = np.concatenate([(r.logp - r.rollout_logprobs)[r.trained] for r in STEP])
    means = run_step(STEP, AlgorithmOptions(), [range(8)]).means
    assert means["approx_kl"] == pytest.approx((np.exp(gaps) - 1 - gaps).mean(), abs=1e-12)
    assert means["ratio"] == pytest.approx(np.exp(gaps).mean(), abs=1e-12)


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ({}, True),
        ({"log_entropy": False}, False),
        ({"log_entropy": False, "entropy_coef": 0.1}, True),
        ({"entropy_coef": 0.1}, True),
    ],
)
def test_the_entropy_is_asked_for_when_it_is_logged_or_trained(flags, needed):
    loss = build_loss(AlgorithmOptions(**flags))
    assert loss.needs == ({"log_probs", "entropy"} if needed else {"log_probs"})
    assert ("entropy_loss" in loss.objective) == ("entropy_coef" in flags)
    means = run_step(STEP, AlgorithmOptions(**flags), [range(8)]).means
    assert ("entropy" in means) == needed
    assert ("entropy_loss" in means) == ("entropy_coef" in flags)


def test_the_share_of_outliers_is_of_the_sequences_with_trained_tokens():
    """Response 6 has none: all of the other seven are further than 1e-9 nats from the engine."""
    means = run_step(STEP, AlgorithmOptions(logprob_outlier_limit=1e-9), [range(8)]).means
    assert means["logprob_outlier_fraction"] == pytest.approx(1.0, abs=1e-6)


def test_importance_weights_are_logged_before_they_are_cut_L24():
    raw = np.concatenate([np.exp(r.old_logprobs - r.rollout_logprobs)[r.trained] for r in STEP])
    options = AlgorithmOptions(old_log_probs="old", use_tis=True, tis_clip=1.2, tis_clip_low=0.8)
    means = run_step(STEP, options, [range(8)]).means
    assert means["tis"] == pytest.approx(raw.mean(), abs=1e-12)
    assert means["tis_abs"] == pytest.approx(np.abs(raw - 1).mean(), abs=1e-12)
    assert means["tis_clip_fraction"] == pytest.approx(((raw > 1.2) | (raw < 0.8)).mean(), abs=1e-12)


def test_the_share_of_tokens_that_opsm_masks_is_logged():
    options = AlgorithmOptions(use_opsm=True, opsm_delta=-0.1)
    columns, masked = prepared(STEP, options)[0], []
    for response, own in zip(STEP, columns, strict=True):
        gap = (response.rollout_logprobs - response.logp)[response.trained]
        masked += [bool(gap.mean() > -0.1) and own["advantages"][t] < 0 for t in response.trained] if gap.size else []
    assert 0 < np.mean(masked) < 1
    assert run_step(STEP, options, [range(8)]).means["opsm_fraction"] == pytest.approx(np.mean(masked), abs=1e-12)


LEAVES: list[torch.Tensor] = []


def weights_with_a_gradient(trainer_logp_T, engine_logp_T, mask_T, *, low, high):
    LEAVES.append(torch.full_like(trainer_logp_T, 0.5).requires_grad_())
    return ImportanceWeights(LEAVES[-1], LEAVES[-1].detach(), torch.zeros_like(mask_T))


def test_no_gradient_flows_through_the_importance_weights_of_a_user_L20():
    path = f"{__name__}.weights_with_a_gradient"
    run_step(STEP, AlgorithmOptions(old_log_probs="old", use_tis=True, custom_tis_function_path=path), [range(8)])
    assert LEAVES[-1].grad is None
