# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One process against two gloo processes: every gradient of several steps, uneven and empty ranks, checkpoints."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from relax.backends.base import ModelSpec
from relax.backends.fsdp.backend import FsdpBackend
from tests.unit.backends.fsdp import rank_jobs
from tests.unit.backends.fsdp.streamed_rollouts import train_rollouts
from tests.unit.backends.training_cases import folder_of, worst_difference

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    models, out = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("out")
    for kind in rank_jobs.KINDS:
        folder_of(models, kind)
    return models, out


@pytest.fixture(scope="module")
def one_process_twice(folders):
    """Gradients of `NUM_STEPS` steps that follow a checkpoint saved after as many."""
    backend = _one_process(folders[0], "qwen3_moe", suppressed_ids=(6, 7, 10))
    rank_jobs.train(backend, "qwen3_moe", None)
    backend.save(folders[1] / "one-process")
    return rank_jobs.train(backend, "qwen3_moe", None)


@pytest.fixture(scope="module")
def two_ranks(folders, one_process_twice):
    """Results of both processes: `[rank][kind]`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.unit.backends.fsdp.rank_jobs", *map(str, folders)]
    processes = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folders[1] / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def _one_process(models: Path, kind: str, **spec) -> FsdpBackend:
    backend = FsdpBackend()
    backend.open(ModelSpec(models / f"{kind}-0", **spec), rank_jobs.OPTIMIZER)
    return backend


@pytest.fixture(scope="module")
def one_rank(folders):
    found = {}
    for kind in rank_jobs.KINDS:
        backend = _one_process(folders[0], kind, suppressed_ids=(6, 7, 10))
        steps = rank_jobs.train(backend, kind, None)
        found[kind] = {"steps": steps, "weights": {n: t.clone() for n, t in backend.weights()}, "backend": backend}
    return found


@pytest.mark.parametrize("kind", rank_jobs.KINDS)
def test_every_gradient_of_every_step_equals_one_process(two_ranks, one_rank, kind):
    for found, right in zip(two_ranks[0][kind]["steps"], one_rank[kind]["steps"], strict=True):
        difference, name = worst_difference(found["grads"], right["grads"])
        assert difference < 2e-5, name
        assert found["norm"] == pytest.approx(right["norm"], rel=1e-5)
        assert found["sums"] == pytest.approx(right["sums"], rel=1e-4)
        assert found["counts"] == right["counts"]


def test_the_critics_gradients_equal_one_process(two_ranks, folders):
    backend = FsdpBackend(value_head=True)
    backend.open(ModelSpec(folders[0] / "qwen3_moe-0"), rank_jobs.OPTIMIZER)
    for found, right in zip(two_ranks[0]["critic"], rank_jobs.train_critic(backend, None), strict=True):
        assert "value_head.weight" in right["grads"]
        difference, name = worst_difference(found["grads"], right["grads"])
        assert difference < 2e-5, name
        assert found["norm"] == pytest.approx(right["norm"], rel=1e-5)
        assert found["sums"] == pytest.approx(right["sums"], rel=1e-4)
        assert found["counts"] == right["counts"]


def test_encoders_without_data_on_a_rank_still_take_part(two_ranks, one_rank):
    """M8: image data only on rank 0, audio only on rank 1, neither in step 1."""
    both = {"visual", "audio_tower"}
    for steps in (one_rank["qwen3_omni"]["steps"], two_ranks[1]["qwen3_omni"]["steps"]):
        assert [both & {n.split(".")[1] for n in step["grads"]} for step in steps] == [both, set(), both]


@pytest.mark.parametrize("kind", rank_jobs.KINDS)
def test_both_ranks_hold_the_same_weights_as_one_process(two_ranks, one_rank, kind):
    for rank in range(2):
        difference, name = worst_difference(two_ranks[rank][kind]["weights"], one_rank[kind]["weights"])
        assert difference < 1e-4, name


def test_scores_under_kept_weights_are_those_of_the_start_and_leave_the_actor_alone(two_ranks, folders):
    kind = "qwen3_moe"
    start = _one_process(folders[0], kind, suppressed_ids=(6, 7, 10))
    for rank in range(2):
        right = start.score(rank_jobs.parts(kind, 0)[rank], frozenset({"log_probs"}))
        found = two_ranks[rank][kind]
        assert sorted(found["ref"]) == sorted(right)
        for uid, columns in right.items():
            assert (found["ref"][uid]["log_probs"] == columns["log_probs"]).all()
            assert (found["actor"][uid]["log_probs"] != columns["log_probs"]).any()


def test_sharded_forward_ranks_take_a_published_version_whole(two_ranks):
    for rank in two_ranks:
        trained = rank["qwen3_moe"]["weights"]
        assert rank["taken"].keys() == trained.keys()
        for name, tensor in trained.items():
            assert torch.equal(rank["taken"][name], tensor), name


def test_a_checkpoint_of_two_ranks_loads_into_one(two_ranks, one_rank, folders):
    kind = "qwen3_omni"
    backend = _one_process(folders[0], kind, suppressed_ids=(6, 7, 10))
    backend.load(folders[1] / f"{kind}-checkpoint")
    assert backend.num_steps == rank_jobs.NUM_STEPS
    saved = two_ranks[0][kind]["weights"]
    assert all(torch.equal(t, saved[n]) for n, t in backend.weights())
    for own in (backend, one_rank[kind]["backend"]):
        own.backward(rank_jobs.parts(kind, 0)[0], rank_jobs.ClippedPolicyLoss())
        own.step(rank_jobs.DIVISOR)
    right = {n: t for n, t in one_rank[kind]["backend"].weights()}
    difference, name = worst_difference(dict(backend.weights()), right)
    assert difference < 1e-4, name


def test_a_checkpoint_of_one_rank_loads_into_two(two_ranks, one_process_twice):
    assert two_ranks[0]["resumed"]["first"] == rank_jobs.NUM_STEPS
    for found, right in zip(two_ranks[0]["resumed"]["steps"], one_process_twice, strict=True):
        difference, name = worst_difference(found["grads"], right["grads"])
        assert difference < 2e-4, name


def test_an_export_of_two_ranks_holds_the_trained_weights(two_ranks, folders):
    import transformers

    hf = transformers.Qwen3MoeForCausalLM.from_pretrained(folders[1] / "qwen3_moe-export", dtype=torch.float32)
    saved = two_ranks[0]["qwen3_moe"]["weights"]
    assert all(torch.equal(p, saved[n]) for n, p in hf.named_parameters())


def test_a_nan_on_one_rank_stops_both_with_the_same_words(two_ranks):
    assert "loss term policy is not finite in samples (0, 0) to (0, 1)" in two_ranks[0]["divergence"]
    assert two_ranks[0]["divergence"] == two_ranks[1]["divergence"]


def test_bf16_on_two_ranks_follows_bf16_on_one(two_ranks, folders):
    right = rank_jobs.train(_one_process(folders[0], "qwen3_moe", dtype="bf16"), "qwen3_moe", None)
    for found, step in zip(two_ranks[0]["bf16"], right, strict=True):
        difference, name = worst_difference(found["grads"], step["grads"])
        assert difference < 0.05, name


# ------------------------------------------------------------------ parts of a rollout


@pytest.mark.parametrize("name", rank_jobs.STREAMED_PARTS)
def test_L27_streamed_parts_on_two_ranks_give_every_gradient_of_one_process(two_ranks, folders, name):
    """Uneven ranks, a rank without a single sample, two optimizer steps a rollout.

    Two ranks add float32 gradients in another order, so with equal weights a tensor may differ by a few roundings
    (2 ** -24 = 6e-8) of its norm. Each update then lets the weights drift apart by as much, which Adam's division
    enlarges for small gradients: measured are 0, 8e-7, 8e-7 and 1.1e-6 over the four steps.
    """
    right = train_rollouts(_one_process(folders[0], "qwen3_moe"), 0, 1, rank_jobs.STREAMED_PARTS["whole"])
    assert len(right) == 4
    for number, (found, step) in enumerate(zip(two_ranks[0][name], right, strict=True)):
        difference, tensor = worst_difference(found["grads"], step["grads"])
        assert difference < (5e-6 if number else 1e-6), tensor
        assert found["norm"] == pytest.approx(step["norm"], rel=1e-6)
        assert found["sums"] == pytest.approx(step["sums"], rel=1e-5)
        assert (found["counts"], found["divisor"]) == (step["counts"], 21.0)


def test_streamed_parts_on_two_ranks_are_the_whole_bit_for_bit(two_ranks):
    for rank in range(2):
        for found, whole in zip(two_ranks[rank]["streamed"], two_ranks[rank]["whole"], strict=True):
            assert all(torch.equal(found["grads"][n], grad) for n, grad in whole["grads"].items())
            assert (found["norm"], found["sums"]) == (whole["norm"], whole["sums"])


@pytest.mark.parametrize("part_size", [1, 3])
def test_streamed_parts_in_one_process_are_the_whole_bit_for_bit(folders, part_size):
    whole, parts = (
        train_rollouts(_one_process(folders[0], "qwen3_moe"), 0, 1, size)
        for size in (rank_jobs.STREAMED_PARTS["whole"], part_size)
    )
    for found, step in zip(parts, whole, strict=True):
        assert all(torch.equal(found["grads"][n], grad) for n, grad in step["grads"].items())
        assert found["sums"] == step["sums"]
