# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Is anything lost, repeated or hung when runs are killed at any moment and resumed?

    OMP_NUM_THREADS=1 python -m benchmarks.kills [--runs 12] [--cluster 2] [--seed 0]

`--runs` kills in all, `--cluster` of them of one process of a run on Ray, the others of a whole run in one process.
Half of them come at named phases (inside a save, a put, the begin and end of an update, a weight sync, ...), half at
random moments. Every line of runs goes on until it has trained all its rollouts; then the prompts that the trainer has
noted beside its weights are compared with those that the data set says. Lines at staleness 0 must end with the weights
of the run that nobody killed. The control forgets at a resume which prompts were open, and must show losses.
The last line is `RESULT {json}`; the exit code is 1 when it falls short.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.kills.lines import CLUSTER_KILLS, MODES, Harness, Kill, passed, random_kills, write_result

WORK = Path(__file__).parents[2] / ".bench" / "kills"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.kills", description="Kill runs, resume them, count prompts.")
    parser.add_argument("--runs", type=int, default=12, help="kills in all")
    parser.add_argument("--cluster", type=int, default=2, help="kills of processes of a run on Ray")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=WORK)
    args = parser.parse_args(argv)
    harness = Harness(args.work, args.seed)
    kills = [CLUSTER_KILLS[number % len(CLUSTER_KILLS)] for number in range(args.cluster)]
    while kills:
        line, kills = kills[:3], kills[3:]
        harness.line(MODES["async"], line)
    for mode in MODES.values():
        harness.whole(mode)
    while harness.tally.runs < args.runs:
        harness.line(harness.rng.choice(list(MODES.values())), random_kills(harness.rng))
    control = sum(harness.control_lost(MODES["async"], Kill("put", nth)) for nth in (4, 7))
    for text in harness.tally.wrong_ends:
        print(text)
    result = harness.tally.result(control)
    print(write_result(result))
    return 0 if passed(result) else 1


if __name__ == "__main__":
    sys.exit(main())
