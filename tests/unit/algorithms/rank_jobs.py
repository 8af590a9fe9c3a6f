# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What each of the two gloo processes of `test_two_ranks` runs: `python -m tests.unit.algorithms.rank_jobs OUT`."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.papers.responses import example_step
from benchmarks.papers.variants import cases, options_of
from tests.unit.algorithms.theta import run_step

SEED = 5
# micro-batches of (rank 0, rank 1): uneven, rank 1 without any sample, rank 0 with silent samples alone
SPLITS = {
    "uneven": ([[0, 4, 1, 7, 2], []], [[3], [6, 5]]),
    "empty rank": ([[0, 1, 2, 3], [4, 5, 6, 7]], [[], []]),
    "silent rank": ([[3, 5], [6]], [[0, 1, 2], [4, 7]]),
}


def gathered(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def main(out: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, step, results = dist.get_rank(), example_step(SEED), {}
    join = {"all_gather": gathered, "all_reduce": dist.all_reduce}
    for variant, mode in cases():
        for name, split in SPLITS.items():
            found = run_step(step, options_of(variant, mode), split[rank], backend=join)
            results[variant, mode, name] = (found.gradient, found.loss, found.means)
    torch.save(results, out / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    assert os.environ["WORLD_SIZE"] == "2"
    main(Path(sys.argv[1]))
