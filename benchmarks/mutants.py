# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Faults planted one at a time in the algorithm files; every one must fail a property test.

    make mutants                                        # all of them, about half an hour on one core
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
from benchmarks.mutation.runner import BROKEN, ROOT, SURVIVED, import_heavy, run_tests

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
    "tests/unit/algorithms/test_objectives.py",
    "tests/unit/algorithms/test_advantages.py",
    "tests/unit/algorithms/test_reduce.py",
    "tests/unit/algorithms/test_kl.py",
    "tests/unit/algorithms/test_importance.py",
    "tests/unit/algorithms/test_policy_loss.py",
    "tests/unit/algorithms/test_m2po.py",
    "tests/unit/algorithms/test_user_functions.py",
    "tests/unit/algorithms/test_diagnostics.py",
    "tests/unit/algorithms/test_normalization.py",
    "tests/unit/algorithms/test_returns.py",
    "tests/unit/algorithms/test_grpo.py",
    "tests/unit/algorithms/test_bandits.py",
    "tests/unit/algorithms/test_properties.py",
)
# where most faults of a file are found; the other tests come after
FIRST = {
    "advantages": ("test_advantages",),
    "importance": ("test_objectives", "test_importance"),
    "kl": ("test_kl",),
    "m2po": ("test_m2po",),
    "normalization": ("test_normalization",),
    "policy_gradient": ("test_grpo", "test_diagnostics"),
    "reduce": ("test_reduce",),
    "returns": ("test_returns",),
    "rollout_advantages": ("test_user_functions",),
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


def tests_for(mutant: Mutant) -> tuple[str, ...]:
    """All tests, those first that are about the file."""
    near = FIRST.get(mutant.path.rpartition("/")[2].removesuffix(".py"), ())
    first = tuple(f"tests/unit/algorithms/{name}.py" for name in near)
    return first + tuple(test for test in TESTS if test not in first)


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
    whole = found[0]
    if run_tests(whole[0].path, whole[1], TESTS, CPU_S, shown=True) != SURVIVED:
        raise SystemExit(f"the tests fail without any fault: python -m pytest {' '.join(TESTS)}")
    started, survivors, counts = time.monotonic(), [], {"mutants": 0, "killed": 0, "equivalent": 0}
    for mutant, source in found:
        if why_equivalent(mutant, source):
            counts["equivalent"] += 1
            continue
        outcome = run_tests(mutant.path, mutant.apply(source), tests_for(mutant), CPU_S)
        if outcome == BROKEN:
            raise SystemExit(f"pytest could not run for {mutant.name}")
        counts["mutants"] += 1
        counts["killed"] += outcome != SURVIVED
        if outcome == SURVIVED:
            survivors.append(mutant.name)
            print("survived:", mutant.name, flush=True)
    print("RESULT", json.dumps({**counts, "seconds": round(time.monotonic() - started)}))
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
