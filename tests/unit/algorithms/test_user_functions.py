# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Functions of the user's own: what they get, that they are used, and what is said when they return something else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.papers.responses import example_step
from relax.algorithms.contract import check_loss
from relax.algorithms.options import AlgorithmOptions, build_loss
from relax.algorithms.rollout_advantages import check_functions
from relax.utils.errors import ConfigError, UserCodeError
from tests.unit.algorithms.theta import prepared, run_step

STEP = example_step(5)
PLACES = range(8)
PARTS = [[[p] for p in PLACES], [[0, 1, 2], [3, 4], [5, 6, 7]]]


# ------------------------------------------------------------------ losses


def surrogate(args, batch):
    """REINFORCE by hand, with a metric."""
    return {"loss": -batch.columns["advantages"] * batch.log_probs, "confidence": batch.log_probs.exp()}


def scaled_by_args(args, batch):
    return args["scale"] * batch.log_probs


def reads_no_advantage(args, batch):
    assert "advantages" not in batch.columns
    return -batch.log_probs


def already_averaged(args, batch):
    return batch.log_probs.mean()


def without_gradient(args, batch):
    return batch.log_probs.detach()


def without_loss(args, batch):
    return {"value": batch.log_probs}


def of_one_argument(batch):
    return batch.log_probs


def looks_under_the_mask(args, batch):
    assert not batch.log_probs[batch.mask == 0].any()
    assert all(not column[batch.mask == 0].any() for column in batch.columns.values())
    assert not any(column.requires_grad for column in batch.columns.values())
    return -batch.log_probs


def own(name: str, **flags) -> AlgorithmOptions:
    return AlgorithmOptions(loss_type="custom_loss", custom_loss_function_path=f"{__name__}.{name}", **flags)


def test_an_own_loss_is_weighed_like_any_other_and_its_names_are_logged():
    found = run_step(STEP, own("surrogate"), [PLACES])
    # at ratio 1 GRPO has the same gradient
    expected = run_step(STEP, AlgorithmOptions(old_log_probs="current"), [PLACES])
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=0, atol=1e-12)
    kept = np.concatenate([r.logp[r.trained] for r in STEP])
    assert found.means["custom/confidence"] == pytest.approx(np.exp(kept).mean(), abs=1e-12)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("mode", ["sample_mean", "token_mean", "token_sum_norm"])
def test_an_own_loss_does_not_depend_on_micro_batches(mode, parts):
    options = own("surrogate", loss_reduction=mode, rollout_max_response_len=9)
    found, expected = run_step(STEP, options, parts), run_step(STEP, options, [PLACES])
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=0, atol=1e-12)
    assert found.means == pytest.approx(expected.means, abs=1e-12)


def test_kl_entropy_and_corrections_are_added_to_an_own_loss():
    extra = {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "k2", "entropy_coef": 0.1}
    plain, more = run_step(STEP, own("surrogate"), [PLACES]), run_step(STEP, own("surrogate", **extra), [PLACES])
    columns, divisor = prepared(STEP, own("surrogate"))
    for place in PLACES:
        response = STEP[place]
        pull = 0.3 * (response.logp - response.ref_logprobs) * columns[place]["loss_weight"] / divisor
        np.testing.assert_allclose(more.by_logp[place] - plain.by_logp[place], pull, rtol=0, atol=1e-12)
    assert any(values.any() for values in more.by_entropy.values())


def test_an_own_loss_gets_the_flags_and_numbers_that_are_harmless_under_the_mask():
    doubled = run_step(STEP, own("scaled_by_args", args={"scale": 2.0}), [PLACES])
    once = run_step(STEP, own("scaled_by_args", args={"scale": 1.0}), [PLACES])
    np.testing.assert_allclose(doubled.gradient, 2.0 * once.gradient, rtol=0, atol=1e-12)
    dirty = [replace(r, rollout_logprobs=np.where(r.mask > 0, r.rollout_logprobs, np.nan)) for r in STEP]
    run_step(dirty, own("looks_under_the_mask"), [PLACES])


def maximal_entropy(args, batch):
    assert batch.entropy is not None and not batch.entropy[batch.mask == 0].any()
    return -batch.entropy


def without_entropy(args, batch):
    assert batch.entropy is None
    return -batch.log_probs


def test_an_own_loss_may_train_the_entropy_which_is_there_when_it_is_asked_for():
    found = run_step(STEP, own("maximal_entropy"), [PLACES])
    columns, divisor = prepared(STEP, own("maximal_entropy"))
    for place in PLACES:
        np.testing.assert_allclose(found.by_entropy[place], -columns[place]["loss_weight"] / divisor, atol=1e-12)
    assert not any(values.any() for values in found.by_logp.values())
    assert run_step(STEP, own("without_entropy", log_entropy=False), [PLACES]).gradient.any()


def test_no_gradient_flows_through_the_columns_that_an_own_loss_reads_L20():
    watched = []

    def edit(batch):
        watched.append({name: column.clone().requires_grad_() for name, column in batch.columns.items()})
        return replace(batch, columns=watched[-1])

    found = run_step(STEP, own("surrogate"), [PLACES], backend={"edit": edit})
    assert found.gradient.any() and all(column.grad is None for column in watched[0].values())


def test_without_advantages_an_own_loss_trains_all_the_same():
    options = own("reads_no_advantage", disable_compute_advantages_and_returns=True)
    found = run_step(STEP, options, [PLACES])
    columns, divisor = prepared(STEP, options)
    assert all("advantages" not in column for column in columns)
    for place in PLACES:
        np.testing.assert_allclose(found.by_logp[place], -columns[place]["loss_weight"] / divisor, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("already_averaged", r"returned \(\) for 'loss'; it must be one number a token, a tensor of shape \(28,\)"),
        ("without_gradient", "returned a loss without gradient"),
        ("without_loss", r"returned \['value'\]; one of the names must be 'loss'"),
    ],
)
def test_what_an_own_loss_returns_wrongly_is_said(name, words):
    with pytest.raises(UserCodeError, match=words) as caught:
        run_step(STEP, own(name), [PLACES])
    assert f"--custom-loss-function-path {__name__}.{name}" in str(caught.value)


def test_a_function_of_other_arguments_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"is called as \(args, batch\), but takes \(batch\)"):
        build_loss(own("of_one_argument"))


# ------------------------------------------------------------------ the reducer


def constant_length(args, *, loss_masks):
    """Dr. GRPO's reducer: 1 / (samples x 9)."""
    counted = sum(mask.any() for mask in loss_masks)
    return [mask / (9.0 * counted) for mask in loss_masks]


def one_weight_a_sample(args, *, loss_masks):
    return [1.0] * len(loss_masks)


def too_few(args, *, loss_masks):
    return [1.0]


def wrong_lengths(args, *, loss_masks):
    return [np.ones(len(mask) + 1) for mask in loss_masks]


def not_a_number(args, *, loss_masks):
    return [math.nan] * len(loss_masks)


def not_a_list(args, *, loss_masks):
    return 1.0


def reduced(name: str, **flags) -> AlgorithmOptions:
    return AlgorithmOptions(custom_pg_loss_reducer_function_path=f"{__name__}.{name}", **flags)


@pytest.mark.parametrize("parts", [[PLACES], *PARTS])
def test_an_own_reducer_weighs_the_policy_loss_and_nothing_else(parts):
    flags = {"use_kl_loss": True, "kl_loss_coef": 0.2, "kl_loss_type": "k2"}
    constant = {"loss_reduction": "token_sum_norm", "rollout_max_response_len": 9}
    found = run_step(STEP, reduced("constant_length", **flags), parts)
    policy = run_step(STEP, AlgorithmOptions(**constant), [PLACES])
    both = run_step(STEP, AlgorithmOptions(**flags), [PLACES])
    alone = run_step(STEP, AlgorithmOptions(), [PLACES])
    for place in PLACES:  # the policy loss by its reducer, the KL by the usual mean over samples
        expected = policy.by_logp[place] + both.by_logp[place] - alone.by_logp[place]
        np.testing.assert_allclose(found.by_logp[place], expected, rtol=0, atol=1e-12)


def test_a_reducer_may_give_one_weight_a_sample_and_samples_that_do_not_train_get_none():
    columns, divisor = prepared(STEP, reduced("one_weight_a_sample"))
    for place in PLACES:
        trains = place not in (3, 5, 6)
        assert columns[place]["policy_weight"].tolist() == (STEP[place].mask * divisor * trains).tolist()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too_few", "returned 1 entries for 8 samples"),
        ("wrong_lengths", r"returned an entry of shape \(5,\) for sample 0; it must be one number, or 4"),
        ("not_a_number", "returned a NaN or an infinity for sample 0"),
        ("not_a_list", "returned float; it must return a list with one entry a sample"),
    ],
)
def test_what_a_reducer_returns_wrongly_is_said(name, words):
    with pytest.raises(UserCodeError, match=words) as caught:
        prepared(STEP, reduced(name))
    assert f"--custom-pg-loss-reducer-function-path {__name__}.{name}" in str(caught.value)


def test_functions_of_other_arguments_are_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"--custom-pg-loss-reducer-function-path.* takes \(batch\)"):
        check_functions(reduced("of_one_argument"))
    with pytest.raises(ConfigError, match=r"--custom-advantage-function-path.* takes \(batch\)"):
        check_functions(custom("of_one_argument"))
    check_functions(custom("plain_rewards"))


# ------------------------------------------------------------------ advantages


def plain_rewards(args, *, rewards, groups, loss_masks, columns):
    rewards[np.isnan(rewards)] = 0.0  # its own copy
    return rewards


def by_token(args, *, rewards, groups, loss_masks, columns):
    return [
        np.arange(len(mask)) + args["offset"] * column[0]
        for mask, column in zip(loss_masks, columns["rollout_logprobs"], strict=True)
    ]


def custom(name: str, **flags) -> AlgorithmOptions:
    return AlgorithmOptions(custom_advantage_function_path=f"{__name__}.{name}", **flags)


def test_own_advantages_are_one_a_sample_or_one_a_token():
    columns, _ = prepared(STEP, custom("plain_rewards"))
    assert [c["advantages"][0] for c in columns] == [1.0, 0.25, -0.5, 0.0, 1.5, 0.0, 2.0, 2.0]
    assert math.isnan(STEP[5].reward)
    columns, _ = prepared(STEP, custom("by_token", args={"offset": 2.0}))
    for response, own_columns in zip(STEP, columns, strict=True):
        expected = np.arange(len(response.mask)) + 2.0 * response.rollout_logprobs[0]
        np.testing.assert_allclose(own_columns["advantages"], expected, rtol=0, atol=0)


def test_own_advantages_may_be_normalised_and_trained_by_any_objective():
    options = custom("plain_rewards", normalize_advantages=True, advantage_estimator="sapo")
    columns, _ = prepared(STEP, options)
    kept = np.concatenate(
        [c["advantages"][r.trained] for c, r, p in zip(columns, STEP, PLACES, strict=True) if p not in (3, 5)]
    )
    assert kept.mean() == pytest.approx(0.0, abs=1e-12) and kept.var(ddof=1) == pytest.approx(1.0, abs=1e-6)
    assert run_step(STEP, options, [PLACES]).gradient.any()


# ------------------------------------------------------------------ the contract test


def test_the_contract_holds_for_a_loss_by_tokens_and_names_what_breaks_it():
    check_loss(f"{__name__}.surrogate")
    with pytest.raises(UserCodeError, match="one number a token"):
        check_loss(f"{__name__}.already_averaged")
    with pytest.raises(AssertionError, match="depends on the cut into micro-batches"):
        check_loss(f"{__name__}.normalised_by_its_micro_batch")
    with pytest.raises(AssertionError, match="what stands under the mask, or on padding"):
        check_loss(f"{__name__}.divided_by_all_tokens")


def normalised_by_its_micro_batch(args, batch):
    return -batch.columns["advantages"] * batch.log_probs / len(batch.log_probs)


def divided_by_all_tokens(args, batch):
    """By sequence, so no cut changes it; but it counts tokens that are not trained."""
    return -batch.log_probs / torch.bincount(batch.sequence)[batch.sequence]
