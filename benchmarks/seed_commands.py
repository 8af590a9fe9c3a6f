# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which of the promised names and commands hold, by the tests that show them.

`tests/acceptance/promises.jsonl` has one line a promise: what is promised, and either the tests (or commands) that
show it or the subject that it waits for. This command runs the named tests in one pytest call and counts.

    python -m benchmarks.seed_commands                    # tests that need no Ray and no training run
    python -m benchmarks.seed_commands --only 79-93,125   # those of some lines
    python -m benchmarks.seed_commands --all              # also those with Ray, engines and training
    python -m benchmarks.seed_commands --list             # run nothing, print every line

A promise is *checked* when all of its proofs were run, and *holds* when all of them passed: a skipped test shows
nothing.
Exits with 1 when a proof fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests/acceptance/promises.jsonl"
LINES = 449
# Tests below these folders start Ray, engines or a training; so do commands.
HEAVY = ("tests/service/", "tests/e2e/", "tests/conformance/", "tests/unit/engine/router/", "python ")


@dataclass(frozen=True)
class Promise:
    """One line of the list: `shown_by` are test ids or commands; without any, it waits for a subject."""

    line: int
    promise: str
    shown_by: tuple[str, ...] = ()
    waits_for: str = ""


def read_promises() -> list[Promise]:
    rows = [json.loads(line) for line in LIST.read_text("utf-8").splitlines()]
    return [Promise(**(row | {"shown_by": tuple(row.get("shown_by", ()))})) for row in rows]


class Outcomes:
    """A pytest plugin that keeps the outcome of every test: passed, failed or skipped."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome


def run_tests(ids: list[str], *, slow: bool) -> dict[str, str]:
    """{test: outcome} of the tests with these ids, each test once, in one call of pytest."""
    outcomes = Outcomes()
    if ids:
        options = ["-q", "-p", "no:cacheprovider", *(["--slow"] if slow else [])]
        code = pytest.main([*options, *(f"{ROOT}/{name}" for name in ids)], plugins=[outcomes])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"pytest could not run the named tests ({code!r}); its message is above")
    return outcomes.found


def outcome_of(proof: str, found: dict[str, str]) -> str:
    """Of a test with several parameters, passed only when all of them are."""
    results = {result for name, result in found.items() if name == proof or name.startswith(f"{proof}[")}
    return next((result for result in ("failed", "skipped", "passed") if result in results), "not run")


def run_command(command: str) -> str:
    done = subprocess.run([sys.executable, *command.split()[1:]], cwd=ROOT)
    return "failed" if done.returncode else "passed"


def numbers(text: str) -> set[int]:
    """The lines of "79-93,125"."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen.update(range(int(first), int(last or first) + 1))
    return chosen


def state_of(promise: Promise, found: dict[str, str]) -> str:
    """holds, failed, skipped, not run, or later."""
    if promise.waits_for:
        return "later"
    results = [found[proof] for proof in promise.shown_by]
    return next((result for result in ("failed", "not run", "skipped") if result in results), "holds")


def table(promises: list[Promise], states: dict[int, str]) -> str:
    """How many lines are in each state, what they wait for, and which failed or were skipped."""
    counts = Counter(states.values())
    rows = [f"{state:<10}{counts[state]:>5}" for state in ("holds", "failed", "skipped", "not run", "later")]
    waiting: dict[str, list[int]] = {}
    for promise in promises:
        if promise.waits_for:
            waiting.setdefault(promise.waits_for, []).append(promise.line)
    rows += ["", "lines that wait for a subject:"]
    rows += [f"{len(lines):>5}  {subject}" for subject, lines in sorted(waiting.items(), key=lambda i: -len(i[1]))]
    for promise in promises:
        if states[promise.line] in ("failed", "skipped"):
            rows += ["", f"{states[promise.line]}: {promise.line} {promise.promise}", *promise.shown_by]
    return "\n".join(rows)


def check(promises: list[Promise], *, everything: bool) -> dict[int, str]:
    """{line: state} after running the proofs."""
    proofs = sorted({proof for promise in promises for proof in promise.shown_by})
    heavy = [proof for proof in proofs if proof.startswith(HEAVY)]
    chosen = proofs if everything else [proof for proof in proofs if proof not in heavy]
    tests = run_tests([proof for proof in chosen if not proof.startswith("python ")], slow=everything)
    found = {proof: outcome_of(proof, tests) for proof in proofs}
    found |= {proof: run_command(proof) for proof in chosen if proof.startswith("python ")}
    return {promise.line: state_of(promise, found) for promise in promises}


def result(promises: list[Promise], states: dict[int, str]) -> dict[str, Any]:
    lines = lambda *wanted: [line for line, state in states.items() if state in wanted]  # noqa: E731
    return {
        "lines": len(promises),
        "checked": len(lines("holds", "failed")),
        "hold": len(lines("holds")),
        "failed": lines("failed"),
        "skipped": lines("skipped"),
        "not_run": lines("not run"),
        "later": lines("later"),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=numbers, metavar="LINES", help="lines such as 79-93,125")
    parser.add_argument("--all", action="store_true", help="also what needs Ray, a training run or minutes")
    parser.add_argument("--list", action="store_true", help="print every line and what shows it; run nothing")
    args = parser.parse_args(argv)
    promises = [promise for promise in read_promises() if args.only is None or promise.line in args.only]
    if args.list:
        for promise in promises:
            print(f"{promise.line:>4}  {promise.promise}")
            print(f"      {'waits for ' + promise.waits_for if promise.waits_for else '; '.join(promise.shown_by)}")
        return 0
    states = check(promises, everything=args.all)
    print(table(promises, states))
    found = result(promises, states)
    print("RESULT", json.dumps(found))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
