# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Runs that go on at a checkpoint, in one process: the same numbers as without the break."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import build_tiny_model_folder
from tests.service.training_run import ASYNC, Finished, Inputs, checkpoint_weights, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

REFERENCE_ROLE = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1]}'


@pytest.fixture
def run(inputs: Inputs, tmp_path: Path):
    def go(*words: object, name: str, **changed: object) -> Finished:
        return inline([*inputs.flags(tmp_path / name, **changed), *words]).ok()

    return go


def same_weights(first: Path, second: Path) -> bool:
    import torch

    a, b = checkpoint_weights(first), checkpoint_weights(second)
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("role", ["actor", "reference"], ids=["kept-by-actor", "own-role"])
def test_a_refreshed_reference_goes_on_with_the_weights_that_it_had(run, role):
    """R3, R5: before and after a refresh, checkpoints that are and are not at one; the learning rate goes on too."""
    words = ["--use-kl-loss", "--ref-update-interval", 2, "--lr-warmup-iters", 4, "--save-interval", 1]
    words += ["--colocate"] if role == "actor" else ["--fully-async", "--max-staleness", 0]
    flags = {"kl_loss_coef": 0.5, "kl_loss_type": "k3", "resource": None if role == "actor" else REFERENCE_ROLE}
    whole = run(*words, name="whole", num_rollout=5, **flags)
    kl = whole.metrics("train/kl_loss")
    assert [value == pytest.approx(0.0, abs=1e-9) for value in kl] == [True, False, True, False, True]
    for cut in (1, 2):  # rollouts 0 .. cut: the reference is the initial one, or of version 2, just before or after
        run(*words, name=f"cut{cut}", num_rollout=cut + 1, **flags)
        resumed = run(*words, name=f"cut{cut}", num_rollout=5, load=whole.folder.parent / f"cut{cut}", **flags)
        for name in ("train/kl_loss", "train/lr", "train/policy_loss", "train/optimizer_steps", "rollout/reward/mean"):
            assert resumed.metrics(name) == whole.metrics(name), name
        assert same_weights(whole.folder / "iter_0000004/model", resumed.folder / "iter_0000004/model")


def test_a_kl_to_another_reference_than_before_is_refused(inputs, run, tmp_path):
    words = ["--use-kl-loss", "--colocate"]
    first = run(*words, name="first", num_rollout=1, kl_loss_coef=0.5)
    other = build_tiny_model_folder(tmp_path / "other", seed=5)
    flags = inputs.flags(first.folder, num_rollout=2, load=first.folder, ref_load=other, kl_loss_coef=0.5)
    refused = inline([*flags, *words])
    assert refused.code == 2
    assert f"measured its KL to another reference than the weights of {other}" in refused.err
    run(*words, name="first", num_rollout=2, load=first.folder, ref_load=inputs.model, kl_loss_coef=0.5)


def test_R3_R10_the_third_epoch_goes_on_where_it_was_with_results_of_each_rollout_once(run):
    """12 rows, 2 a rollout: rollout 13 is in the third epoch. Saving every third rollout divides nothing."""
    whole = run(*ASYNC, 0, name="whole", num_rollout=16)
    run(*ASYNC, 0, name="cut", num_rollout=16, save_interval=3)
    folder = whole.folder.parent / "cut"
    (folder / "latest_checkpointed_iteration.txt").write_text("11")  # killed after rollout 15, before its checkpoint
    resumed = run(*ASYNC, 0, name="cut", num_rollout=16, load=folder)
    assert "12 rollouts are contained" in resumed.out
    for rollout_id in range(16):
        assert resumed.samples(rollout_id) == whole.samples(rollout_id)
    assert {sample["epoch"] for sample in resumed.samples(13)} == {2}
    steps = [json.loads(line)["step"] for line in (folder / "metrics/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(16))
    assert same_weights(whole.folder / "iter_0000015/model", folder / "iter_0000015/model")
    # the journal as it stands has every rollout once
    from relax.schedule.journal import read_surviving

    events = [event for _, event in read_surviving(folder / "journal")["driver"]]
    assert [event.rollout_id for event in events if event.kind == "stepped"] == list(range(16))
    assert len([event for event in events if event.kind == "bound"]) == 16


def test_A29_a_run_that_ended_with_its_epoch_trains_the_next_one_when_it_goes_on(run):
    """12 rows, 12 a rollout: the checkpoint lies exactly between two epochs."""
    size = {"rollout_batch_size": 12, "num_rollout": None}
    folder = run(*ASYNC, 0, name="epochs", num_epoch=1, **size).folder
    done = run(*ASYNC, 0, name="epochs", num_epoch=2, load=folder, **size)
    assert [event["rollout_id"] for event in done.events("stepped")] == [0, 1]
    for epoch in (0, 1):
        assert sorted({(s["epoch"], s["row"]) for s in done.samples(epoch)}) == [(epoch, row) for row in range(12)]
    assert not same_weights(folder / "iter_0000000/model", folder / "iter_0000001/model")


def test_a_start_without_a_checkpoint_in_a_used_folder_counts_from_nothing(run):
    from relax.schedule.journal import read_surviving

    run("--colocate", name="used", num_rollout=1)
    again = run("--colocate", name="used", num_rollout=2)
    found = read_surviving(again.folder / "journal")
    assert [event.rollout_id for _, event in found["driver"] if event.kind == "stepped"] == [0, 1]
    assert len([event for _, event in found["rollout"] if event.kind == "completed"]) == 4
    assert [len(again.samples(rollout_id)) for rollout_id in range(2)] == [4, 4]
    assert len(again.metrics("perf/step_s")) == 2
