# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Workload W2, bound by computing: 27 M parameters, 8 prompts x 8 samples of exactly 64 new tokens.

    python -m benchmarks.w2 --against FOLDER [--pairs 5] [--steps 4]

Relax beside B0, a hand-tuned one-file loop. See `side_by_side`; the last line is `RESULT {json}`.
"""

from benchmarks.side_by_side import Workload, compare

_SHAPE = ("--prompts", "8", "--n", "8", "--max-new", "64", "--micro", "32")

W2 = Workload(
    name="w2",
    fixture=("--size", "w2", "--sft-steps", "0"),
    prompts=8,
    samples=8,
    max_new=64,
    max_tokens=2560,
    peers={"b0": ("b0.py", "seq", "--threads", "2", *_SHAPE)},
    goals={"relax_colocate/b0_cpu": 1.05, "relax_colocate/b0_wall": 1.05, "relax_async/relax_colocate_wall": 1.00},
)

if __name__ == "__main__":
    compare(W2, __doc__ or "")
