# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Modes that must give the same weights, bit for bit, on a tiny model in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.training_run import Finished, Inputs, checkpoint_weights, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

FOUR_ROLES = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1],"advantages":[1,0]}'
KL = ("--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k3")
MODES = {
    "colocate": ("--colocate",),
    "hybrid": ("--hybrid",),
    "async": ("--fully-async", "--max-staleness", "0", "--resource", FOUR_ROLES),
}
LAST = "iter_0000001/model"


def weights_of(folder: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in checkpoint_weights(folder / LAST).items()}


def short_run(inputs: Inputs, folder: Path, *words: str, **changed: object) -> Finished:
    """Two rollouts of 4 x 2 samples, three or more micro-batches each."""
    sizes = {"rollout_batch_size": 4, "max_tokens_per_gpu": 64, **changed}
    return inline([*inputs.flags(folder, **sizes), "--use-dynamic-batch-size", *KL, *words]).ok()


@pytest.fixture(scope="module")
def by_mode(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    folder = tmp_path_factory.mktemp("modes")
    return {name: short_run(inputs, folder / name, *words) for name, words in MODES.items()}


def test_A7_hybrid_and_async_without_staleness_give_the_weights_of_colocate(by_mode):
    expected = weights_of(by_mode["colocate"].folder)
    for mode in ("hybrid", "async"):
        assert weights_of(by_mode[mode].folder) == expected, mode
        assert by_mode[mode].ages() == [0] * 8
    # the KL was on: policy and reference are the same weights in the first rollout, not in the second
    for done in by_mode.values():
        assert done.metrics("train/kl_loss")[0] == pytest.approx(0.0, abs=1e-9)
        assert done.metrics("train/kl_loss")[1] > 1e-9


def test_the_journal_names_the_mode(by_mode):
    assert [by_mode[m].events("run_started")[0]["mode"] for m in MODES] == ["colocate", "hybrid", "fully_async"]


def test_another_seed_gives_other_weights(by_mode, inputs, tmp_path):
    other = short_run(inputs, tmp_path / "other", "--hybrid", rollout_seed=7)
    assert weights_of(other.folder) != weights_of(by_mode["hybrid"].folder)


def test_a_hybrid_run_may_be_ahead_of_its_weights_by_the_staleness_and_no_more(inputs, tmp_path):
    done = short_run(inputs, tmp_path / "ahead", "--hybrid", "--max-staleness", "1", num_rollout=4)
    assert len(done.ages()) == 16
    assert max(done.ages()) == 1
    assert done.metrics("train/kl_loss")[0] == pytest.approx(0.0, abs=1e-9)  # computed by the actor's kept copy


# ------------------------------------------------------------------ streamed


STREAMED = ("--num-iters-per-train-update", "2")
TWO_STEPS = {"global_batch_size": 4}


def test_a_streamed_rollout_gives_the_weights_of_the_whole_one(by_mode, inputs, tmp_path):
    done = short_run(inputs, tmp_path / "streamed", "--hybrid", "--num-iters-per-train-update", "4")
    assert weights_of(done.folder) == weights_of(by_mode["hybrid"].folder)
    bound = [(e["rollout_id"], e["groups"], e["last"]) for e in done.events("bound")]
    assert bound == [(r, [4 * r + g], g == 3) for r in range(2) for g in range(4)]
    # what a step measured is the same too, and so are the samples
    whole = by_mode["hybrid"]
    for name in ("train/policy_loss", "train/kl_loss", "train/grad_norm", "train/entropy", "train/trained_tokens"):
        assert done.metrics(name) == whole.metrics(name), name
    assert done.samples(1) == whole.samples(1)


def test_two_optimizer_steps_a_rollout_stream_alike_in_every_mode(inputs, tmp_path):
    """Old log-probs are those of the weights before the first step, though later parts come after it."""
    four = FOUR_ROLES.replace("}", ',"actor_fwd":[1,1]}')
    runs = {
        "colocate": ("--colocate",),
        "hybrid": ("--hybrid", *STREAMED),
        "async": ("--fully-async", "--no-use-rollout-logprobs", "--resource", four, *STREAMED),
    }
    done = {name: short_run(inputs, tmp_path / name, *words, **TWO_STEPS) for name, words in runs.items()}
    expected = weights_of(done["colocate"].folder)
    for name, run in done.items():
        assert weights_of(run.folder) == expected, name
        assert run.metrics("train/optimizer_steps") == [2.0, 4.0]
        assert all(value > 0 for value in run.metrics("train/approx_kl")), name  # the second step is off-policy


def test_arrival_order_agrees_up_to_rounding(by_mode, inputs, tmp_path):
    done = short_run(inputs, tmp_path / "arrival", "--hybrid", *STREAMED, "--stream-order", "arrival", num_rollout=1)
    for name in ("train/policy_loss", "train/grad_norm"):  # a first loss is the mean of terms near 1 that cancel
        assert done.metrics(name)[0] == pytest.approx(by_mode["hybrid"].metrics(name)[0], rel=1e-6, abs=1e-7), name
