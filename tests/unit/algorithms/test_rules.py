# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Each rule of an algorithm is refused on the command line with a text of its own, and what obeys it is accepted."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.spec import ALGOS, READERS, AlgorithmSpec
from relax.config.run import default_config
from relax.utils.errors import ConfigError

ASYNC = {"fully_async": True, "max_staleness": 1}
RPP = {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.01}
BASELINE = {
    "advantage_estimator": "reinforce_plus_plus_baseline",
    "use_kl_loss": True,
    "kl_loss_coef": 0.01,
    "kl_loss_type": "k2",
}
OWN = {"loss_type": "custom_loss", "custom_loss_function_path": "a.b"}
# per algorithm the flags that it cannot do without
LEAST: dict[str, dict[str, Any]] = {"reinforce_plus_plus": RPP, "reinforce_plus_plus_baseline": BASELINE}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dr_grpo averaged over its tokens": (
        {"advantage_estimator": "dr_grpo", "loss_reduction": "sample_mean"},
        "--advantage-estimator dr_grpo is defined with --loss-reduction token_sum_norm, and sample_mean is chosen",
    ),
    "dr_grpo by tokens": (
        {"advantage_estimator": "dr_grpo", "calculate_per_token_loss": True},
        "and token_mean is chosen: leave --calculate-per-token-loss out",
    ),
    "dr_grpo normalised": (
        {"advantage_estimator": "dr_grpo", "normalize_advantages": True},
        "--normalize-advantages changes what --advantage-estimator dr_grpo means",
    ),
    "rloo normalised": (
        {"advantage_estimator": "rloo", "normalize_advantages": True},
        "--normalize-advantages changes what --advantage-estimator rloo means",
    ),
    "rloo by samples": (
        {"advantage_estimator": "rloo", "loss_reduction": "sample_mean"},
        "--advantage-estimator rloo is defined with --loss-reduction token_mean",
    ),
    "rloo on stale samples": (
        ASYNC | {"advantage_estimator": "rloo"},
        "--advantage-estimator rloo has no ratio to correct stale samples: use --max-staleness 0, not 1",
    ),
    "rloo in several steps": (
        {"advantage_estimator": "rloo", "num_steps_per_rollout": 2},
        "--advantage-estimator rloo has no ratio to correct for earlier optimizer steps on a rollout: use "
        "--num-steps-per-rollout 1, not 2",
    ),
    "rloo on interrupted responses": (
        {"advantage_estimator": "rloo", "partial_rollout": True},
        "has no ratio to correct responses that began under older weights: drop --partial-rollout",
    ),
    "rloo alone": (
        {"advantage_estimator": "rloo", "n_samples_per_prompt": 1},
        "--advantage-estimator rloo compares the samples of a prompt: use --n-samples-per-prompt 2 or more",
    ),
    "rloo with a KL in the reward": (
        {"advantage_estimator": "rloo", "kl_coef": 0.1},
        "--kl-coef 0.1 has no effect with --advantage-estimator rloo, whose KL is a loss term",
    ),
    "reinforce++ without its KL": (
        {"advantage_estimator": "reinforce_plus_plus"},
        "--advantage-estimator reinforce_plus_plus has the KL to the reference in its token reward: give --kl-coef",
    ),
    "reinforce++ with another KL": (RPP | {"kl_loss_type": "k3"}, "is k1, logp - ref_logp; use k1"),
    "reinforce++ with two KLs": (RPP | {"use_kl_loss": True}, "--use-kl-loss adds a second KL to"),
    "reinforce++ as it is": (
        RPP | {"normalize_advantages": False},
        "--advantage-estimator reinforce_plus_plus normalises its advantages over the whole rollout: leave "
        "--no-normalize-advantages out",
    ),
    "reinforce++ in parts": (
        RPP | ASYNC | {"num_iters_per_train_update": 2},
        "--normalize-advantages looks at all samples of a rollout at once, and --num-iters-per-train-update",
    ),
    "the baseline without its KL": (
        {"advantage_estimator": "reinforce_plus_plus_baseline"},
        "--advantage-estimator reinforce_plus_plus_baseline holds the policy by a k2 loss: give --use-kl-loss",
    ),
    "the baseline with another KL": (BASELINE | {"kl_loss_type": "k3"}, "holds the policy by a k2 loss"),
    "the baseline alone": (
        BASELINE | {"n_samples_per_prompt": 1},
        "--advantage-estimator reinforce_plus_plus_baseline compares the samples of a prompt",
    ),
    "m2po in parts": (
        ASYNC | {"advantage_estimator": "m2po", "num_iters_per_train_update": 2},
        "--advantage-estimator m2po looks at all samples of a rollout at once",
    ),
    "a whitened rollout in parts": (
        ASYNC | {"normalize_advantages": True, "num_iters_per_train_update": 2},
        "--normalize-advantages looks at all samples of a rollout at once",
    ),
    "own advantages in parts": (
        ASYNC | {"custom_advantage_function_path": "a.b", "num_iters_per_train_update": 2},
        "--custom-advantage-function-path looks at all samples of a rollout at once",
    ),
    "an own reducer in parts": (
        ASYNC | {"custom_pg_loss_reducer_function_path": "a.b", "num_iters_per_train_update": 2},
        "--custom-pg-loss-reducer-function-path looks at all samples of a rollout at once",
    ),
    "an own loss without a function": ({"loss_type": "custom_loss"}, "needs --custom-loss-function-path"),
    "a function without an own loss": (
        {"custom_loss_function_path": "a.b"},
        "--custom-loss-function-path has no effect without --loss-type custom_loss",
    ),
    "an own loss with a reducer": (
        OWN | {"custom_pg_loss_reducer_function_path": "a.b"},
        "--custom-pg-loss-reducer-function-path weighs the policy loss, which --loss-type custom_loss replaces",
    ),
    "no advantages for the policy loss": (
        {"disable_compute_advantages_and_returns": True},
        "--disable-compute-advantages-and-returns leaves --loss-type policy_loss nothing to train with",
    ),
    "no advantages and own ones": (
        OWN | {"disable_compute_advantages_and_returns": True, "custom_advantage_function_path": "a.b"},
        "--disable-compute-advantages-and-returns and --custom-advantage-function-path: keep one",
    ),
    "no advantages, normalised": (
        OWN | {"disable_compute_advantages_and_returns": True, "normalize_advantages": True},
        "leaves --normalize-advantages nothing to normalise",
    ),
    "a group of one": (
        {"n_samples_per_prompt": 1},
        "--n-samples-per-prompt 1 leaves grpo nothing to compare a response with",
    ),
    "a clip of an algorithm without one": (
        {"advantage_estimator": "sapo", "eps_clip": 0.1},
        "--eps-clip 0.1 has no effect with --advantage-estimator sapo: it is read by grpo, dr_grpo, gspo, cispo",
    ),
    "a gate of another algorithm": (
        {"sapo_tau_neg": 2.0},
        "--sapo-tau-neg 2.0 has no effect with --advantage-estimator grpo: it is read by sapo; leave it out",
    ),
    "a discount of an advantage that is constant": ({"gamma": 0.9}, "--gamma 0.9 has no effect with"),
    "an unknown name": ({"advantage_estimator": "gspoo"}, "did you mean gspo?"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_rule_is_refused_by_name(name):
    flags, text = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        default_config(**flags)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ALGOS)
def test_every_algorithm_is_accepted_with_what_it_needs(name):
    config = default_config(**({"advantage_estimator": name} | LEAST.get(name, {})))
    spec = ALGOS[name]
    assert config.algorithm.normalize_advantages is spec.requires_normalize_advantages
    assert config.algorithm.loss_reduction == (spec.reduction or "sample_mean")


@pytest.mark.parametrize("name", sorted(set(ALGOS) - {"rloo"}))
def test_stale_samples_are_accepted_where_a_ratio_corrects_them(name):
    config = default_config(**(ASYNC | {"advantage_estimator": name} | LEAST.get(name, {})))
    assert config.old_log_probs == "rollout"


def test_one_sample_a_prompt_is_enough_without_a_comparison():
    assert default_config(**RPP, n_samples_per_prompt=1).rollout.n_samples_per_prompt == 1
    own = {"custom_advantage_function_path": "a.b", "n_samples_per_prompt": 1}
    assert default_config(**own).rollout.n_samples_per_prompt == 1


def test_options_made_by_hand_are_refused_by_the_same_texts():
    with pytest.raises(ConfigError, match="is defined with --loss-reduction token_mean"):
        AlgorithmOptions(advantage_estimator="rloo", loss_reduction="sample_mean")
    with pytest.raises(ConfigError, match="give --kl-coef"):
        AlgorithmOptions(advantage_estimator="reinforce_plus_plus")
    for wrong in ({"gamma": 0.0}, {"gamma": 1.5}, {"sapo_tau_pos": 0.0}, {"m2po_budget": -1.0}):
        (name,) = wrong
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} must be"):
            AlgorithmOptions(**wrong)


def test_every_field_of_the_table_is_read():
    """Each rule's field differs from its default somewhere, or a role or loss loads what it names."""
    usual = {f.name: f.default for f in fields(AlgorithmSpec)}
    for f in fields(AlgorithmSpec):
        if f.name in ("summary", "formula", "source", "needs_roles", "epsilon"):
            continue
        assert any(getattr(spec, f.name) != usual[f.name] for spec in ALGOS.values()), f.name


def test_every_option_of_the_table_is_a_flag():
    names = {f.name for f in fields(AlgorithmOptions)}
    assert READERS.keys() <= names
