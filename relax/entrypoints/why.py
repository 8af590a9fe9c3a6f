# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax why`: one number of a curve, down to samples, tokens, versions, ratio, advantage and divisor."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.entrypoints.replay import DIFFERS, work_folder
from relax.utils.errors import RelaxError

if TYPE_CHECKING:
    from relax.core.replay.why import Explanation, Why
    from relax.core.replay.why_sample import SampleStory

DESCRIPTION = """
Explain the numbers of one step from the run folder: which samples, tokens, versions or tensors add how much. Each
number is computed again with the run's own code, and compared with the curve; the parts are summed in float64 beside
it. Without --metric and --sample all numbers of the step are listed. The exit code is 6 when a number does not come
out as the curve has it.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relax why", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--run", required=True, metavar="DIR", type=Path, help="run folder (--save of the training)")
    parser.add_argument("--step", required=True, metavar="K", type=int, help="rollout, counted from 0")
    parser.add_argument("--metric", metavar="NAME", help="curve to explain, such as train/policy_loss")
    parser.add_argument("--sample", metavar="ID", help="show every token of a sample, such as g12.3")
    parser.add_argument("--rows", metavar="N", type=int, default=20, help="most rows to print (default 20)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0: every number that was computed again is the curve's; 6: one is not; others as errors are numbered."""
    args = build_parser().parse_args(argv)
    try:
        with work_folder(args.run) as record:
            from relax.core.replay.why import Why

            found = asyncio.run(_run(Why(record, args.step), args))
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    print("RESULT " + json.dumps({"step": args.step, **found}))
    return 0 if found["equal"] else DIFFERS


async def _run(why: Why, args: argparse.Namespace) -> dict[str, Any]:
    if args.sample is not None:
        from relax.core.replay.why_sample import sample_story

        story = await sample_story(why, args.sample, args.metric)
        print_story(story, args.step)
        return {**summary(story.whole), "sample": args.sample, "adds": story.adds, "tokens": len(story.tokens)}
    if args.metric is not None:
        explanation = await why.explain(args.metric)
        print_explanation(explanation, args.rows)
        return summary(explanation)
    return await _print_overview(why, args.step)


async def _print_overview(why: Why, step: int) -> dict[str, Any]:
    found = await why.overview()
    explained = [item for item in found if not isinstance(item, str)]
    width = max(len(item.metric) for item in explained)
    for item in explained:
        same = "equal" if item.equal else f"DIFFERS: computed again {item.recomputed!r}"
        print(f"{item.metric:<{width}}  {item.curve:<24.17g} {same:<6} = {item.formula}")
    measured = [item for item in found if isinstance(item, str)]
    print(f"\nmeasured, not computed: {', '.join(measured)}")
    print(f"\n`--metric NAME` shows the parts of a number, `--sample {sample_example(why)}` the tokens of a sample.")
    wrong = [item.metric for item in explained if not item.equal]
    return {"explained": len(explained), "differ": wrong, "equal": not wrong}


def sample_example(why: Why) -> str:
    return f"g{why.step.groups[0]}.0"


def print_explanation(found: Explanation, most: int) -> None:
    from relax.utils.metrics import find_spec

    spec = find_spec(found.metric)
    print(f"{found.metric} = {found.curve!r}  ({spec.meaning}; unit: {spec.unit})")
    print(f"computed again by the run's code: {found.recomputed!r}, {equality(found)}")
    print(f"= {found.formula}\n")
    whole = sum(abs(row.total) for row in found.rows) or 1.0
    lines = [(found.kind, "adds", "counts", "share", "")]
    for row in found.rows[:most]:
        share = f"{100 * abs(row.total) / whole:.1f} %"
        lines.append((row.name, f"{row.total:+.9g}", f"{row.count:g}", share, row.what))
    print_table(lines)
    if len(found.rows) > most:
        print(f"and {len(found.rows) - most} more (--rows {len(found.rows)})")
    print(f"\nthe rows give {found.of_rows!r} in float64; the curve is {found.gap:.3g} away from that")


def print_story(story: SampleStory, step: int) -> None:
    group, place = story.uid
    print(f"sample g{group}.{place} at step {step}, optimizer step {story.optimizer_step} of it: {story.what}")
    print(f"prompt: {story.prompt!r}\nresponse: {story.response!r}\n")
    has_ref = any(token.ref is not None for token in story.tokens)
    head = ["t", "text", "id", "version", "age", "mask", "engine", "old", "current"]
    lines = [[*head, *(["reference"] if has_ref else []), "ratio", "advantage", "weight", "adds"]]
    for token in story.tokens:
        origin = ["-", "-"] if token.age is None else [str(token.version), str(token.age)]
        scores = [token.engine, token.old, token.current, *([token.ref] if token.ref is not None else [])]
        lines.append(
            [
                str(token.place), repr(token.text), str(token.token), *origin, str(int(token.trained)),
                *(f"{score:.6f}" for score in scores),
                f"{token.ratio:.6f}{' clipped' if token.clipped else ''}",
                f"{token.advantage:+.6f}", f"{token.weight:.6f}", f"{token.adds:+.9g}",
            ]
        )  # fmt: skip
    print_table(lines)
    whole = story.whole
    print(f"\nthe tokens add {story.adds:+.9g} to the sum behind {story.metric}; / {story.divisor:g} that is")
    print(f"{story.adds / story.divisor:+.9g} of {whole.curve!r}, and computed again that is {equality(whole)}")


def equality(found: Explanation) -> str:
    if found.curve == found.recomputed:
        return "equal to the curve bit for bit"
    if found.equal:
        return f"within a relative 1e-3 of the curve's {found.curve!r} ({found.inexact})"
    return f"NOT the curve's {found.curve!r}"


def summary(found: Explanation) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "curve": found.curve,
        "recomputed": found.recomputed,
        "equal": found.equal,
        "of_rows": found.of_rows,
        "rows": len(found.rows),
    }


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """Columns of equal width; the last one is left as it is."""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]) - 1)]
    for line in lines:
        cells = [f"{text:<{width}}" for text, width in zip(line, widths, strict=False)]
        print("  ".join([*cells, line[-1]]).rstrip())


if __name__ == "__main__":
    sys.exit(main())
