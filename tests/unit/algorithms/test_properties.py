# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every algorithm and aggregation in float64: the papers' closed form, and what must not change the gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from benchmarks.papers.objectives import step_loss
from benchmarks.papers.responses import Response, example_step
from benchmarks.papers.variants import VARIANTS, cases, options_of
from relax.algorithms.loss import TokenBatch
from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.spec import ALGOS
from tests.unit.algorithms.theta import StepResult, prepared, run_step

CASES = cases()
PLACES = tuple(range(8))
STEP = example_step(5)
EXACT = {"rtol": 0.0, "atol": 1e-12}


@cache
def whole(variant: str, mode: str) -> StepResult:
    """The step in one micro-batch."""
    return run_step(STEP, options_of(variant, mode), [PLACES])


def same(found: StepResult, expected: StepResult) -> None:
    assert found.loss == pytest.approx(expected.loss, abs=1e-12)
    np.testing.assert_allclose(found.gradient, expected.gradient, **EXACT)
    assert found.means == pytest.approx(expected.means, abs=1e-12)
    for place, values in expected.by_logp.items():
        np.testing.assert_allclose(found.by_logp[place], values, **EXACT)


def test_every_algorithm_of_the_table_is_here():
    assert {flags["advantage_estimator"] for flags in VARIANTS.values()} >= set(ALGOS) - {"ppo"}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_loss_and_gradient_are_those_of_the_paper(variant, mode, seed):
    step, flags = example_step(seed), VARIANTS[variant]
    options = options_of(variant, mode)
    found = run_step(step, options, [PLACES])
    name = flags["advantage_estimator"]
    given = {**flags, "loss_reduction": mode, "rollout_max_response_len": 9, "old_log_probs": options.old_log_probs}
    loss, by_logp, by_entropy = step_loss(step, name, **given)
    # M2PO's threshold travels as a float32 column
    exact = {"rtol": 0.0, "atol": 1e-7 if name == "m2po" else 1e-12}
    assert found.loss == pytest.approx(loss, abs=exact["atol"])
    for place in PLACES:
        np.testing.assert_allclose(found.by_logp[place], by_logp[place], **exact)
        np.testing.assert_allclose(found.by_entropy[place], by_entropy[place], **exact)
    gradient = sum(by_logp[place] @ step[place].features for place in PLACES)
    np.testing.assert_allclose(found.gradient, gradient, **exact)


SPLITS = ([[p] for p in PLACES], [PLACES[:1], PLACES[1:7], PLACES[7:]], [PLACES[:5], (), PLACES[5:]])


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_micro_batches_and_their_packing_change_nothing_L1_L4(variant, mode):
    expected = whole(variant, mode)
    for parts in SPLITS:
        same(run_step(STEP, options_of(variant, mode), parts), expected)


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_the_order_of_samples_changes_nothing_G1_G4(variant, mode):
    order = [6, 1, 7, 3, 0, 5, 2, 4]
    moved = run_step([STEP[place] for place in order], options_of(variant, mode), [[4, 0, 5], [1, 2, 3, 7], [6]])
    expected = whole(variant, mode)
    assert moved.loss == pytest.approx(expected.loss, abs=1e-12)
    np.testing.assert_allclose(moved.gradient, expected.gradient, **EXACT)
    for now, before in enumerate(order):
        np.testing.assert_allclose(moved.by_logp[now], expected.by_logp[before], **EXACT)


def padded(response: Response, left: int, right: int, fill: float) -> Response:
    """The response with positions that are not trained on both sides, holding `fill`."""
    pad = lambda values, value: np.concatenate([np.full(left, value), values, np.full(right, value)])  # noqa: E731
    names = ("logp", "rollout_logprobs", "old_logprobs", "ref_logprobs", "entropy")
    features = np.zeros((left + len(response.mask) + right, response.features.shape[1]))
    features[left : left + len(response.mask)] = response.features
    return replace(
        response,
        mask=pad(response.mask, 0).astype(np.uint8),
        features=features,
        **{name: pad(getattr(response, name), fill) for name in names},
    )


PADDINGS = ((0, 3, 0.0), (2, 0, -9.0), (1, 2, 1e9), (2, 1, np.nan), (0, 1, np.inf))


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_padding_of_either_side_and_any_value_changes_nothing_P8_L8_L15(variant, mode):
    expected = whole(variant, mode)
    for left, right, fill in PADDINGS:
        step = [padded(response, left, right, fill) for response in STEP]
        found = run_step(step, options_of(variant, mode), [PLACES])
        assert found.loss == pytest.approx(expected.loss, abs=1e-12)
        assert found.means == pytest.approx(expected.means, abs=1e-12)
        np.testing.assert_allclose(found.gradient, expected.gradient, **EXACT)
        for place in PLACES:
            inner = found.by_logp[place][left : len(found.by_logp[place]) - right]
            np.testing.assert_allclose(inner, expected.by_logp[place], **EXACT)
            assert not np.delete(found.by_logp[place], range(left, left + len(inner))).any()


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_the_length_of_prompts_changes_nothing(variant, mode):
    found = run_step(STEP, options_of(variant, mode), [PLACES], prompt_len=lambda place: 7 * place)
    same(found, whole(variant, mode))


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_the_dtype_of_masks_changes_nothing(variant, mode):
    expected = whole(variant, mode)
    for dtype in (torch.bool, torch.int64, torch.float32, torch.float64):

        def edit(batch: TokenBatch, dtype: torch.dtype = dtype) -> TokenBatch:
            return replace(batch, mask=batch.mask.to(dtype))

        same(run_step(STEP, options_of(variant, mode), [PLACES], backend={"edit": edit}), expected)


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_a_token_that_is_not_trained_gets_no_gradient_and_a_silent_sample_none_at_all_L38(variant, mode):
    found = whole(variant, mode)
    for place, response in enumerate(STEP):
        assert not found.by_logp[place][response.mask == 0].any()
    for place in (3, 5, 6):  # removed, without a reward, without a trained token
        assert not found.by_logp[place].any() and not found.by_entropy[place].any()
    assert found.by_logp[0].any()


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_only_log_probs_and_entropy_have_a_gradient_L20(variant, mode):
    watched = []

    def edit(batch: TokenBatch) -> TokenBatch:
        columns = {name: column.clone().requires_grad_() for name, column in batch.columns.items()}
        watched.append(columns)
        return replace(batch, columns=columns)

    same(run_step(STEP, options_of(variant, mode), [PLACES], backend={"edit": edit}), whole(variant, mode))
    assert all(column.grad is None for column in watched[0].values())


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_an_impossible_log_ratio_stays_finite_L21(variant, mode):
    step = [replace(response, rollout_logprobs=response.rollout_logprobs.copy()) for response in STEP]
    step[0].rollout_logprobs[0], step[2].rollout_logprobs[0] = -150.0, 150.0
    found = run_step(step, options_of(variant, mode), [PLACES])
    assert np.isfinite(found.loss) and np.isfinite(found.gradient).all()


@pytest.mark.parametrize("policy", ["keep", "count_only", "drop"])
@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_groups_without_variance_follow_their_policy_L26(variant, mode, policy):
    """Responses 6 and 7 have equal rewards; 6 has no trained token, so one sample of four tokens is meant."""
    options = replace(options_of(variant, mode), zero_variance=policy)
    found = run_step(STEP, options, [PLACES])
    has_baseline = options.spec.baseline != "none"
    if policy == "drop" and has_baseline:
        without = [replace(r, removed=r.removed or r.group == 2) for r in STEP]
        expected = run_step(without, options_of(variant, mode), [PLACES])
        np.testing.assert_allclose(found.gradient, expected.gradient, **EXACT)
    if policy != "keep" and has_baseline:
        assert not found.by_logp[7].any()
    columns, divisor = prepared(STEP, options)
    everyone = prepared(STEP, options_of(variant, mode))[1]
    gone = {"sample_mean": 1, "token_sum_norm": 1, "token_mean": len(STEP[7].trained)}[mode]
    assert divisor == everyone - gone * (policy == "drop" and has_baseline)
    if has_baseline and not options.normalize_advantages:
        assert not columns[7]["advantages"].any()


def test_a_step_in_which_nothing_trains_has_no_gradient_and_no_nan_L11_L12():
    for variant, mode in CASES:
        step = [replace(response, mask=np.zeros_like(response.mask)) for response in STEP]
        found = run_step(step, options_of(variant, mode), [PLACES])
        assert found.loss == 0.0 and not found.gradient.any(), variant


def test_options_of_the_variants_differ_in_what_they_compute():
    """No variant is another one under a second name: a flag that is ignored would make two of them equal."""
    gradients = {}
    for variant, flags in VARIANTS.items():
        options = options_of(variant, ALGOS[flags["advantage_estimator"]].reduction or "sample_mean")
        gradients[variant] = np.concatenate(
            [run_step(example_step(seed), options, [PLACES]).gradient for seed in range(4)]
        )
    names = list(gradients)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not np.allclose(gradients[one], gradients[other], rtol=0, atol=1e-9), (one, other)


def test_gspo_is_its_sequence_form():
    """Eq. 5 of the paper: s_i inside the clip, differentiated by autograd, one term a sequence."""
    options = AlgorithmOptions(advantage_estimator="gspo", eps_clip=0.05, eps_clip_high=0.08)
    found = run_step(STEP, options, [PLACES])
    columns, _ = prepared(STEP, options)
    trained = [p for p in PLACES if columns[p]["loss_weight"].any()]
    logp = {p: torch.as_tensor(STEP[p].logp).requires_grad_() for p in trained}
    total = torch.zeros((), dtype=torch.float64)
    for place in trained:
        kept = torch.as_tensor(STEP[place].mask > 0)
        gap = (logp[place] - torch.as_tensor(STEP[place].rollout_logprobs))[kept].mean()
        a = float(columns[place]["advantages"][STEP[place].trained[0]])
        total = total - torch.minimum(gap.exp() * a, gap.exp().clamp(0.95, 1.08) * a) / len(trained)
    total.backward()
    assert found.loss == pytest.approx(float(total.detach()), abs=1e-12)
    for place in trained:
        np.testing.assert_allclose(found.by_logp[place], logp[place].grad.numpy(), **EXACT)


def test_what_a_sample_without_weight_holds_enters_no_term_of_the_objective():
    """Response 3 is removed; a token that its reference thinks impossible has an infinite KL."""
    options = AlgorithmOptions(use_kl_loss=True, kl_loss_coef=0.1)
    step = [replace(response) for response in STEP]
    step[3].ref_logprobs = np.full(len(step[3].mask), -np.inf)
    found, expected = run_step(step, options, [PLACES]), run_step(STEP, options, [PLACES])
    assert found.loss == pytest.approx(expected.loss, abs=1e-12)
    np.testing.assert_allclose(found.gradient, expected.gradient, **EXACT)
