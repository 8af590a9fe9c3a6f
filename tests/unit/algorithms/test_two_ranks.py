# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Two gloo processes against one: uneven, empty and silent ranks, every algorithm and aggregation, float64."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.papers.responses import example_step
from benchmarks.papers.variants import cases, options_of
from tests.unit.algorithms.rank_jobs import SEED, SPLITS
from tests.unit.algorithms.theta import run_step

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """{(variant, mode, split): (gradient, loss, means)} of each rank."""
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.unit.algorithms.rank_jobs", str(out)],
            env=env | {"RANK": str(rank)}, cwd=ROOT, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()
    return [torch.load(out / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("variant", "mode"), cases())
def test_two_ranks_give_the_gradient_and_the_metrics_of_one_L4_L12_L27_G6_G7(two_ranks, variant, mode, split):
    expected = run_step(example_step(SEED), options_of(variant, mode), [range(8)])
    for rank in two_ranks:
        gradient, loss, means = rank[variant, mode, split]
        np.testing.assert_allclose(gradient, expected.gradient, rtol=0, atol=1e-12)
        assert loss == pytest.approx(expected.loss, abs=1e-12)
        assert means == pytest.approx(expected.means, abs=1e-12)
