# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Workload W1, end to end on a small model: Relax beside TRL and beside B0, a hand-tuned one-file loop.

    python -m benchmarks.w1 --against FOLDER [--pairs 5] [--steps 10] [--skip trl]

1 M parameters, 32 prompts x 8 samples, at most 32 new tokens. See `side_by_side`; the last line is `RESULT {json}`.
"""

from benchmarks.side_by_side import Workload, compare

W1 = Workload(
    name="w1",
    fixture=("--size", "w1"),
    prompts=32,
    samples=8,
    max_new=32,
    max_tokens=2048,
    peers={
        "b0": ("b0.py", "seq", "--threads", "2"),
        "b0_async": ("b0.py", "async"),
        "trl": ("trl_grpo.py", "--threads", "2", "--micro", "32"),
    },
    goals={
        "relax_colocate/trl_cpu": 0.60,
        "relax_colocate/trl_wall": 0.60,
        "relax_colocate/b0_cpu": 1.00,
        "relax_async/trl_wall": 0.55,
        "relax_async/relax_colocate_wall": 1.00,
    },
)

if __name__ == "__main__":
    compare(W1, __doc__ or "")
