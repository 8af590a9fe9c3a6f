# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The training command: parse, check, and either report (`--dry-run`) or run.

Nothing heavy is imported before the command line is known to be good: `--help` and every refusal take a fraction of a
second.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

if __package__ in (
    None,
    "",
):  # started as a file: this folder must not hide packages, and the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax.config.external.architecture import architecture
from relax.config.files import check_files
from relax.config.report import backends_text, dry_run_report
from relax.config.run import RunConfig, parse_args
from relax.data.hub import Hub
from relax.entrypoints.hooks import check_hooks
from relax.entrypoints.hub_names import fetch_weights, local_first_row, with_local_names
from relax.entrypoints.preflight import Findings, preflight
from relax.utils.errors import RelaxError


def main(argv: Sequence[str] | None = None) -> int:
    """The process's exit code. Errors that Relax raises on purpose are told without a traceback."""
    try:
        hub = Hub()
        given = parse_args(argv, first_row=functools.partial(local_first_row, hub))
        config = with_local_names(given, hub)
        check_files(config)
        check_hooks(config)
        findings = preflight(config)
        if config.cluster.dry_run:
            return report(config, findings)
        fetch_weights(given, hub)
        return start(config, findings)
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before the run handles signals itself, so nothing has started
        print("stopped by SIGINT before the start", file=sys.stderr)
        return 130


def report(config: RunConfig, findings: Findings) -> int:
    """Print what would run."""
    content = dry_run_report(config, rows=findings.rows)
    content["architecture"] = architecture(config.external, Path(config.checkpoint.hf_checkpoint or "").expanduser())
    content["notes"] += findings.notes
    text = json.dumps(content, indent=2, ensure_ascii=False)
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader (head, less) has seen enough; Python must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def start(config: RunConfig, findings: Findings) -> int:
    """Run the training. Imports the heavy part."""
    from relax.core.controller import run_training  # pyright: ignore[reportMissingImports]
    from relax.utils import faults

    for note in (
        backends_text(config),
        *config.notes,
        *findings.notes,
        *faults.notes(),
        *drop_job_address(os.environ),
    ):
        print(f"note: {note}", file=sys.stderr)
    return run_training(config)


def drop_job_address(environment: MutableMapping[str, str]) -> Iterator[str]:
    """Take an `http://` RAY_ADDRESS out of the environment: Ray itself refuses it. Yields what was done."""
    address = environment.get("RAY_ADDRESS", "")
    if address.startswith(("http://", "https://")):
        del environment["RAY_ADDRESS"]
        yield (
            f"RAY_ADDRESS={address} is an address for `ray job submit`; this process does not use it and "
            "joins the Ray of its own node"
        )


if __name__ == "__main__":
    sys.exit(main())
