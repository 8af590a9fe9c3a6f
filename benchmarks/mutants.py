# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Faults planted one at a time in the algorithm files; every one must fail a property test.

    make mutants                                        # all of them, some minutes on one core
    python -m benchmarks.mutants --only gspo,reduce     # those of some files
    python -m benchmarks.mutants --list                 # print them, run nothing

A fault that changes no number is no fault: `benchmarks/mutation/equivalent.py` lists those with the reason, and they
are not counted. Prints the survivors and exits with 1 when there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from benchmarks.mutation.equivalent import why_equivalent
from benchmarks.mutation.operators import Mutant, mutants_of
from benchmarks.mutation.runner import ROOT, import_heavy, killed

FOLDER = "relax/algorithms"
FILES = (
    "advantages",
    "cispo",
    "gspo",
    "importance",
    "kl",
    "m2po",
    "normalization",
    "policy_gradient",
    "policy_loss",
    "reduce",
    "returns",
    "rollout_advantages",
    "sapo",
)
TESTS = (
    "test_objectives",
    "test_advantages",
    "test_reduce",
    "test_kl",
    "test_importance",
    "test_policy_loss",
    "test_m2po",
    "test_normalization",
    "test_returns",
    "test_diagnostics",
    "test_user_functions",
    "test_grpo",
    "test_bandits",
    "test_properties",
)
# where most faults of a file are found; the other tests come after
FIRST = {
    "importance": ("test_objectives", "test_importance"),
    "policy_gradient": ("test_diagnostics", "test_user_functions", "test_grpo"),
    "rollout_advantages": ("test_user_functions",),
    **{name: (f"test_{name}",) for name in ("advantages", "kl", "m2po", "normalization", "reduce", "returns")},
}
CPU_S = 120  # of one run of the tests


def chosen(only: str | None) -> list[tuple[Mutant, str]]:
    """(mutant, source of its file) of the files named."""
    names = only.split(",") if only else FILES
    found = []
    for name in names:
        if name not in FILES:
            raise SystemExit(f"--only {name}: known are {', '.join(FILES)}")
        path = f"{FOLDER}/{name}.py"
        source = (ROOT / path).read_text("utf-8")
        found += [(mutant, source) for mutant in mutants_of(path, source)]
    return found


def tests_for(mutant: Mutant) -> list[str]:
    """All tests, those first that are about the file."""
    first = FIRST.get(mutant.path.rpartition("/")[2].removesuffix(".py"), ())
    return [f"tests.unit.algorithms.{name}" for name in dict.fromkeys((*first, *TESTS))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="files, by a comma list")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    found = chosen(options.only)
    if options.list:
        for mutant, source in found:
            print(mutant.name, f"  [{why_equivalent(mutant, source)}]" if why_equivalent(mutant, source) else "")
        return
    import_heavy()
    first, source = found[0]
    if killed(first.path, source, tests_for(first), CPU_S):
        raise SystemExit("the tests fail without any fault: python -m pytest tests/unit/algorithms")
    started, counts = time.monotonic(), {"mutants": 0, "killed": 0, "equivalent": 0}
    for mutant, source in found:
        if why_equivalent(mutant, source):
            counts["equivalent"] += 1
            continue
        found_out = killed(mutant.path, mutant.apply(source), tests_for(mutant), CPU_S)
        counts["mutants"] += 1
        counts["killed"] += found_out
        if not found_out:
            print("survived:", mutant.name, flush=True)
    print("RESULT", json.dumps({**counts, "seconds": round(time.monotonic() - started)}))
    sys.exit(counts["killed"] < counts["mutants"])


if __name__ == "__main__":
    main()
