# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax conformance URL`: what an inference server honours of what training needs, one line a check.

A server may be the native engine, SGLang, or anything that speaks SGLang's routes. Log-probs are compared with a plain
Hugging Face forward of the server's model folder. The last line is `RESULT {json}`; exit code 4 when a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.utils.errors import RelaxError

if TYPE_CHECKING:
    from relax.backends.conformance.check import Check, Outcome
    from relax.backends.conformance.context import Context

CHECK_FAILED = 4
USAGE_ERROR = 2


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="relax conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("url", nargs="?", help="of the server, for example http://127.0.0.1:30000")
    p.add_argument(
        "--model", type=Path, help="the server's model folder, readable here (default: the one it names, if it is)"
    )
    p.add_argument(
        "--update-weights",
        action="store_true",
        help="also send other weights and put the old ones back; the server must be yours alone, and the folder of "
        "--work-dir readable to it",
    )
    p.add_argument("--only", nargs="+", metavar="WORD", default=[], help="checks or areas whose name holds a word")
    p.add_argument("--timeout", type=float, default=100.0, help="longest time of one call, in seconds")
    p.add_argument("--work-dir", type=Path, help="where other weights are written (default: a temporary folder)")
    p.add_argument("--list", action="store_true", help="print the checks and what each asks, without a server")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    from relax.backends.conformance.suite import CHECKS

    checks = [c for c in CHECKS if not arguments.only or any(w in f"{c.area}/{c.name}" for w in arguments.only)]
    if not checks:
        print(f"--only {' '.join(arguments.only)}: no check has that in its name; see --list", file=sys.stderr)
        return USAGE_ERROR
    if arguments.list:
        print("\n".join(f"{check.area:9} {check.name:62} {check.says}" for check in checks))
        return 0
    if arguments.url is None:
        print("relax conformance: give the URL of a server, or --list", file=sys.stderr)
        return USAGE_ERROR
    try:
        outcomes, about = asyncio.run(_ask(arguments, checks))
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    counts = Counter(outcome.verdict for outcome in outcomes)
    result = {**about, "passed": counts["honoured"], "failed": counts["fails"]}
    result |= {"not_offered": counts["not offered"], "not_asked": counts["not asked"]}
    print(f"RESULT {json.dumps(result)}")
    return CHECK_FAILED if counts["fails"] else 0


async def _ask(arguments: argparse.Namespace, checks: Sequence[Check]) -> tuple[list[Outcome], dict[str, Any]]:
    """Run the checks one after the other, each printed when it has ended."""
    from relax.backends.conformance.check import run_check
    from relax.backends.conformance.context import Context
    from relax.backends.engine_client import HttpEngineClient

    client = HttpEngineClient(arguments.url, timeout_s=arguments.timeout)
    try:
        info = await client.info()
        folder = model_folder(arguments.model, str(info.raw.get("model_path", "")))
        with tempfile.TemporaryDirectory(prefix="relax-conformance-", dir=arguments.work_dir) as work:
            context = Context(client, info, folder=folder, may_update=arguments.update_weights, work=Path(work))
            print("\n".join(_header(context, folder)), flush=True)
            outcomes = []
            for check in checks:
                outcome = await run_check(check, context)
                outcomes.append(outcome)
                print(row(outcome), flush=True)
    finally:
        await client.close()
    return outcomes, {"url": client.url, "backend": info.backend, "version": str(info.raw.get("version", ""))}


def model_folder(given: Path | None, named: str) -> Path | None:
    """The folder for the plain forward: the given one, else the one that the server names, if it is readable here."""
    if given is not None:
        return given
    return Path(named) if named and (Path(named) / "config.json").is_file() else None


def _header(context: Context, folder: Path | None) -> Iterator[str]:
    info = context.info
    yield f"{info.url}: {info.backend} {info.raw.get('version', '')}, weight version {info.weight_version}"
    yield f"plain forward: {folder if folder else 'none, the model folder is not readable here (--model)'}"
    offers = {"seeds": info.seeds, "version spans": info.version_spans, "exact": info.exact}
    yield "it says: " + ", ".join(f"{name} {'yes' if value else 'no'}" for name, value in offers.items())
    yield ""


def row(outcome: Outcome) -> str:
    line = f"{outcome.verdict:12} {outcome.check.area:9} {outcome.check.name}"
    return f"{line}: {outcome.detail}" if outcome.detail else line


if __name__ == "__main__":
    sys.exit(main())
