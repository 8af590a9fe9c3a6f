# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax replay`: compute steps of a run again from its folder, and name the first number that is not what it was."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from relax.utils.errors import ConfigError, RelaxError

if TYPE_CHECKING:
    from relax.core.replay.compare import StepOutcome
    from relax.core.replay.record import RunRecord
    from relax.core.replay.replay import ReplayResult

DIFFERS = 6  # exit code: the replay went through, and something is not what was recorded
SHOWN = 10  # differences that are printed for each kind of field

DESCRIPTION = """
Compute steps of a run again from its folder alone, with the run's own code, and compare every number with what the run
recorded: the trace, rewards, advantages, log-probs, loss, gradient and weights. Training starts at the newest weights
at or before the step (a checkpoint, or the model of the start). On a CPU with one training process everything must
come out bit for bit. The exit code is 6 when something differs.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relax replay", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--run", required=True, metavar="DIR", type=Path, help="run folder (--save of the training)")
    parser.add_argument("--step", metavar="K or A-B", help="rollouts to compare, counted from 0; all when left out")
    parser.add_argument(
        "--no-rewards", action="store_true", help="do not call reward functions again (they cost, or change)"
    )
    parser.add_argument(
        "--regenerate",
        action="store_true",
        help="sample again, too, with the native engine in this process, and compare ids and log-probs",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0: everything is as recorded; 6: something differs; others as errors are numbered."""
    args = build_parser().parse_args(argv)
    try:
        with work_folder(args.run) as record:
            result = asyncio.run(_run(record, args))
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    print(ending(result))
    print("RESULT " + json.dumps(result.to_json()))
    return DIFFERS if result.first else 0


@contextlib.contextmanager
def work_folder(run: Path) -> Iterator[RunRecord]:
    """The record of the run, inside the folder that it was started from: relative paths mean what they meant."""
    from relax.core.replay.record import RunRecord

    record = RunRecord.read(run.resolve())
    started_in = Path(record.manifest.get("cwd", "."))
    with contextlib.chdir(started_in if started_in.is_dir() else Path.cwd()), _importable(Path.cwd()):
        yield record


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules of `folder` can be imported, as they could when the run was started there."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def chosen_steps(text: str | None, record: RunRecord) -> list[int]:
    """`3`, `2-5`, or every trained rollout; raises ConfigError for what is not there."""
    if text is None:
        if not record.steps:
            raise ConfigError(record.known_steps())
        return sorted(record.steps)
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ConfigError(f"--step {text}: give the number of a rollout, counted from 0, or a range such as 2-5")
    steps = list(range(int(first), int(last or first) + 1))
    if not steps:
        raise ConfigError(f"--step {text}: the range ends before it begins")
    for step in steps:
        record.step(step)
    return steps


async def _run(record: RunRecord, args: argparse.Namespace) -> ReplayResult:
    from relax.core.replay.replay import replay

    steps = chosen_steps(args.step, record)
    print(f"run {record.known_steps()}", flush=True)
    return await replay(
        record,
        steps,
        with_rewards=not args.no_rewards,
        regenerate=args.regenerate,
        on_step=lambda outcome: print(step_text(outcome), flush=True),
    )


def step_text(outcome: StepOutcome) -> str:
    """One line a step with the number of equal values of each kind, and its differences below."""
    cells = [f"{check.name} {check.verdict}" for check in outcome.checks]
    lines = [f"step {outcome.step}: {', '.join(cells)}"]
    for check in outcome.checks:
        lines += [f"  {difference}" for difference in check.differences[:SHOWN]]
        if len(check.differences) > SHOWN:
            lines.append(f"  and {len(check.differences) - SHOWN} more of {check.name}")
    return "\n".join(lines)


def ending(result: ReplayResult) -> str:
    lines = [f"trained from {result.start}"]
    lines += [f"not compared: {name}: {why}" for name, why in result.skipped.items()]
    if result.inexact:
        lines.append(f"sums are compared within a relative 1e-3, not bit for bit: {result.inexact}")
    if result.first:
        lines.append(f"the first difference is in {result.first}")
    else:
        lines.append(f"all {result.compared} values are what the run recorded")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
