# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every algorithm through the product's own roles on the tiny model: it trains, and its steps are computed again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from relax.algorithms.spec import ALGOS
from relax.entrypoints.replay import main as replay_main
from relax.entrypoints.why import main as why_main
from tests.service.test_replay import on_runs
from tests.service.training_run import ASYNC, Finished, Inputs, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
LOSSES = "tests.service.test_algorithms_inline."
STEPS = {"global_batch_size": 2}  # two optimizer steps a rollout: the second one has ratios other than 1
FLAGS: dict[str, tuple[list[str], dict[str, object]]] = {
    "rloo": ([], {}),
    "m2po": (list(ASYNC), {"m2po_budget": 1e-9, "n_samples_per_prompt": 4}),
    "reinforce_plus_plus": ([], {"kl_coef": 0.1, "gamma": 0.9, **STEPS}),
    "reinforce_plus_plus_baseline": (["--use-kl-loss"], {"kl_loss_coef": 0.1, "kl_loss_type": "k2", **STEPS}),
}
MINE = sorted(set(ALGOS) - {"ppo"})


@pytest.fixture(scope="module")
def runs(inputs: Inputs, tmp_path_factory) -> dict[str, Finished]:
    """One short run of each algorithm, with a checkpoint after each rollout."""
    folder, found = tmp_path_factory.mktemp("algorithms"), {}
    for name in MINE:
        words, flags = FLAGS.get(name, ([], STEPS))
        words = [*words, 1] if words[:1] == ["--fully-async"] else [*words, "--colocate"]
        given = {"num_rollout": 2, "save_interval": 1, "advantage_estimator": name, **flags}
        found[name] = inline([*inputs.flags(folder / name, **given), *words])
    return found


@pytest.fixture
def replay(capsys):
    return on_runs(replay_main, capsys)


@pytest.fixture
def why(capsys):
    return on_runs(why_main, capsys)


@pytest.mark.parametrize("name", MINE)
def test_it_trains(runs, name):
    done = runs[name].ok()
    assert done.reason == "finished"
    assert len(done.metrics("train/loss")) == 2
    assert all(math.isfinite(value) for value in done.metrics("train/loss"))
    assert all(norm > 0 for norm in done.metrics("train/grad_norm"))
    assert all(norm > 0 for norm in done.metrics("train/gradient_norm/policy_loss"))


@pytest.mark.parametrize("name", MINE)
def test_its_steps_are_computed_again_bit_for_bit(runs, replay, name):
    found = replay(runs[name].ok().folder)
    assert found.code == 0, found.out + found.err


@pytest.mark.parametrize("name", MINE)
def test_every_number_that_is_no_measurement_is_explained(runs, why, name):
    found = why(runs[name].ok().folder, "--step", 1)
    assert found.code == 0, found.out + found.err
    assert found.result["differ"] == []
    measured = found.out.split("measured, not computed: ")[1].splitlines()[0].split(", ")
    assert {text for text in measured if not text.startswith("perf/")} <= {
        "rollout/sampled_tokens",
        "train/optimizer_steps",
        "train/weight_version",
    }


def test_reinforce_plus_plus_puts_the_kl_of_the_kept_reference_into_the_reward(runs):
    done = runs["reinforce_plus_plus"].ok()
    first, second = done.metrics("rollout/kl_penalty/mean")
    assert first == pytest.approx(0.0, abs=1e-7)  # the policy is its own reference
    assert second != 0.0
    # normalised over the rollout's trained tokens: their mean square is 1
    assert done.metrics("train/advantage_abs")[0] == pytest.approx(0.8, abs=0.2)


def test_m2po_holds_the_step_at_its_budget(runs):
    done = runs["m2po"].ok()
    before, after = done.metrics("train/m2_before"), done.metrics("train/m2_after")
    # the first rollout is sampled by the very weights that are trained: nothing is harmful
    assert len(before) >= 1 and before[-1] > 1e-9
    assert after[-1] == pytest.approx(1e-9, rel=1e-6)


def test_a_reference_role_of_its_own_gives_the_penalty_that_the_actor_gives(inputs, tmp_path):
    flags = {"num_rollout": 2, "advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.1}
    colocate = inline([*inputs.flags(tmp_path / "colocate", **flags), "--colocate"]).ok()
    roles = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1]}'
    own = [*inputs.flags(tmp_path / "own", **flags, resource=roles), "--fully-async", "--max-staleness", 0]
    assert inline(own).ok().metrics("rollout/kl_penalty/mean") == colocate.metrics("rollout/kl_penalty/mean")


# ------------------------------------------------------------------ functions of the user's own


def reinforce(args, batch):
    assert args.lr == 1e-3  # the run's flags
    return {"loss": -batch.columns["advantages"] * batch.log_probs, "probability": batch.log_probs.exp()}


def averaged(args, batch):
    return batch.log_probs.mean()


def signs(args, *, rewards, groups, loss_masks, columns):
    assert args.n_samples_per_prompt == 2
    return np.sign(rewards - rewards.mean())


def constant_length(args, *, loss_masks):
    length = args.rollout_max_response_len
    return [mask / (length * len(loss_masks)) for mask in loss_masks]


def test_an_own_loss_trains_and_its_numbers_are_logged_and_explained(inputs, tmp_path, why):
    words = inputs.flags(tmp_path / "own", custom_loss_function_path=LOSSES + "reinforce", save_interval=1)
    done = inline([*words, "--colocate", "--loss-type", "custom_loss"]).ok()
    assert all(0 < value <= 1 for value in done.metrics("train/custom/probability"))
    assert all(norm > 0 for norm in done.metrics("train/grad_norm"))
    found = why(done.folder, "--step", 0, "--metric", "train/custom/probability")
    assert found.code == 0, found.out + found.err


def test_an_own_loss_that_averages_ends_the_run_with_the_users_exit_code(inputs, tmp_path):
    words = inputs.flags(tmp_path / "own", custom_loss_function_path=LOSSES + "averaged")
    done = inline([*words, "--colocate", "--loss-type", "custom_loss"])
    assert done.code == 3
    assert "it must be one number a token" in done.err + done.out


def test_own_advantages_and_an_own_reducer_reach_the_trainer(inputs, tmp_path):
    own = {"custom_advantage_function_path": LOSSES + "signs"}
    own["custom_pg_loss_reducer_function_path"] = LOSSES + "constant_length"
    done = inline([*inputs.flags(tmp_path / "own", **own, num_rollout=1), "--colocate"]).ok()
    # the same advantages with Dr. GRPO's reduction, which divides by the same constant
    flags = {"custom_advantage_function_path": LOSSES + "signs", "advantage_estimator": "dr_grpo"}
    expected = inline([*inputs.flags(tmp_path / "dr", **flags, num_rollout=1), "--colocate"]).ok()
    assert done.metrics("train/grad_norm") == pytest.approx(expected.metrics("train/grad_norm"), rel=1e-5)
    assert json.loads((done.folder / "config.json").read_text())
    assert Path(done.folder / "trace").is_dir()
