# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax stacks --run DIR`: what every process of a run is doing right now, and what it waits for.

For a run that seems stuck: nothing is stopped, the run goes on. Run it on the run's machine, as the run's user. Exit
code 1 when a process that lives did not answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from relax.core.run_folder import RunFolder
from relax.utils.collect_stacks import ANSWER_S, collect, report
from relax.utils.errors import ConfigError, RelaxError

SILENT = 1


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="relax stacks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--run", type=Path, required=True, help="Folder of the run.")
    p.add_argument("--timeout", type=float, default=ANSWER_S, help="Longest wait for an answer, in seconds.")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        if not arguments.run.is_dir():
            raise ConfigError(f"--run {arguments.run}: there is no such folder; give the one that the run has printed")
        found = collect(RunFolder(arguments.run).stacks, answer_s=arguments.timeout)
        if not found:
            raise ConfigError(
                f"--run {arguments.run}: no process of it lives on this machine; what it was doing is in "
                f"{arguments.run / 'logs'}"
            )
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    sys.stdout.write(report(found))
    return SILENT if any(stacks.state == "silent" for stacks in found) else 0


if __name__ == "__main__":
    sys.exit(main())
