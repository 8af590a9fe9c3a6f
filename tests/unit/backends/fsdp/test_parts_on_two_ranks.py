# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Adapters, MTP layers and heads on two gloo processes: every gradient, weight and file equals one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.unit.backends.fsdp import part_jobs
from tests.unit.backends.training_cases import worst_difference

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(both ranks' results by case, one process's)."""
    models, out = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("out")
    part_jobs.make_models(models)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.unit.backends.fsdp.part_jobs", str(models), str(out)]
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
    ranks = [torch.load(out / f"parts{rank}.pt", weights_only=False) for rank in range(2)]
    one = {name: part_jobs.train(name, models, out / "one") for name in part_jobs.CASES}
    return ranks, one


@pytest.mark.parametrize("case", part_jobs.CASES)
def test_every_gradient_of_every_step_equals_one_process(results, case):
    ranks, one = results
    for found, right in zip(ranks[0][case]["steps"], one[case]["steps"], strict=True):
        difference, name = worst_difference(found["grads"], right["grads"])
        assert difference < 2e-5, name
        assert found["norm"] == pytest.approx(right["norm"], rel=1e-5)
        assert found["sums"] == pytest.approx(right["sums"], rel=1e-5, abs=1e-6)
        assert found["counts"] == right["counts"]


@pytest.mark.parametrize("case", part_jobs.CASES)
def test_published_and_resumed_weights_equal_one_process(results, case):
    ranks, one = results
    for rank in ranks:
        difference, name = worst_difference(rank[case]["weights"], one[case]["weights"])
        assert difference < 1e-4, name
        assert all(torch.equal(t, rank[case]["weights"][n]) for n, t in rank[case]["resumed"].items())


@pytest.mark.parametrize("case", ["lora", "lora_bf16", "lora_moe"])
def test_copies_that_take_the_published_adapter_have_the_trainers_bits(results, case):
    ranks, one = results
    for side in (*ranks, one):
        taken = side[case]["taken"]
        assert taken and all(torch.equal(tensor, side[case]["weights"][name]) for name, tensor in taken.items())


def test_two_ranks_write_one_whole_adapter(results):
    from safetensors.torch import load_file

    ranks, one = results
    found, right = (
        load_file(side["lora"]["folder"] / "model/lora_adapter/adapter_model.safetensors") for side in (ranks[0], one)
    )
    assert {n: t.shape for n, t in found.items()} == {n: t.shape for n, t in right.items()}
    assert worst_difference(found, right)[0] < 1e-4
