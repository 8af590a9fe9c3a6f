# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whole runs on virtual time under planted faults: thousands of schedules, each checked from its evidence alone.

    python -m benchmarks.simulate --schedules 10000 [--seed S] [--jobs N]
    python -m benchmarks.simulate --only 4711           # one schedule again, with its plan and what it broke

Exits with 1 when a schedule breaks a promise or a planted mistake is not found.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

CHUNK = 25


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.only is not None:
        return _replay(options.only)
    started = time.perf_counter()
    bad, faults = _schedules(range(options.seed, options.seed + options.schedules), options.jobs)
    wall_s = time.perf_counter() - started
    found, planted = (0, 0) if options.skip_planted else _planted(options.jobs)
    result = {
        "schedules": options.schedules,
        "violations": len(bad),
        "planted_found": found,
        "planted": planted,
        "schedules_per_s": round(options.schedules / wall_s, 2),
        "cpu_s": round(_cpu_s(), 1),
        "faults": dict(faults),
    }
    print("RESULT " + json.dumps(result))
    return 1 if bad or found < planted else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", type=int, help="play this seed alone and show what it does")
    parser.add_argument("--skip-planted", action="store_true", help="leave the planted mistakes out")
    return parser


def _schedules(seeds: range, jobs: int) -> tuple[list[int], Counter[str]]:
    """(seeds that broke a promise, how many schedules had which fault)."""
    bad: list[int] = []
    faults: Counter[str] = Counter()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    done, told = 0, time.monotonic()
    with ProcessPoolExecutor(jobs, initializer=_quiet) as pool:
        for chunk, (found, seen) in zip(chunks, pool.map(_play_all, chunks), strict=True):
            done += len(chunk)
            faults.update(seen)
            for seed, texts in found:
                bad.append(seed)
                print(f"seed {seed}: {texts[0]} ({len(texts)} in all)", flush=True)
                print(f"  again: python -m benchmarks.simulate --only {seed}", flush=True)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                print(f"{done} of {len(seeds)} schedules, {len(bad)} bad", flush=True)
    return bad, faults


def _play_all(seeds: Iterable[int]) -> tuple[list[tuple[int, tuple[str, ...]]], Counter[str]]:
    from benchmarks.simulation.schedule import play

    found, faults = [], Counter[str]()
    for seed in seeds:
        outcome = play(seed)
        faults.update(outcome.faults())
        if outcome.found:
            found.append((seed, outcome.found))
    return found, faults


def _planted(jobs: int) -> tuple[int, int]:
    """(found, planted)."""
    from benchmarks.simulation.mistakes import MISTAKES

    with ProcessPoolExecutor(jobs, initializer=_quiet) as pool:
        results = list(pool.map(_find, range(len(MISTAKES))))
    for mistake, result in zip(MISTAKES, results, strict=True):
        text = "NOT FOUND" if result is None else f"seed {result[0]}: {result[1]}"
        print(f"planted: {mistake.name}\n  {text}", flush=True)
    return sum(result is not None for result in results), len(MISTAKES)


def _find(number: int) -> tuple[int, str] | None:
    from benchmarks.simulation.mistakes import MISTAKES, find

    return find(MISTAKES[number])


def _replay(seed: int) -> int:
    from benchmarks.simulation.schedule import play

    outcome = play(seed)
    print(outcome.plan, outcome.trouble, f"incarnations: {outcome.incarnations}", sep="\n")
    print(*(outcome.found or ("every promise holds",)), sep="\n")
    print("RESULT " + json.dumps({"schedules": 1, "seed": seed, "violations": int(bool(outcome.found))}))
    return 1 if outcome.found else 0


def _quiet() -> None:
    """Planted faults are logged and printed by the thousand."""
    logging.disable(logging.CRITICAL)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


if __name__ == "__main__":
    sys.exit(main())
