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
