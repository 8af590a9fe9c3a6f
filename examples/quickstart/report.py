# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the quick start shows at its end: the reward curve, held-out answers before and after, and one RESULT line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from relax.utils.jsonl import JsonlWriter, dumps, read_jsonl

WINDOW = 10  # steps of the means that the result states


def reward_curve(metrics: Path) -> list[float]:
    """Mean reward of each step, in step order; the last line of a step counts."""
    rewards = {
        int(row["step"]): float(row["rollout/reward/mean"])
        for row in read_jsonl(metrics)
        if "rollout/reward/mean" in row
    }
    return [rewards[step] for step in sorted(rewards)]


def largest(metrics: Path, name: str) -> float | None:
    """Largest value of a metric over all steps; None when it was never measured."""
    values = [float(row[name]) for row in read_jsonl(metrics) if name in row]
    return max(values) if values else None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def plot(rewards: Sequence[float], before: float, after: float, title: str, path: Path) -> None:
    """The reward curve as a PNG, with the held-out accuracies as level lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(range(1, len(rewards) + 1), rewards, marker="o", markersize=3, label="reward of sampled answers")
    axes.axhline(before, linestyle="--", color="tab:red", label=f"held-out accuracy before: {before:.3f}")
    axes.axhline(after, linestyle="--", color="tab:green", label=f"held-out accuracy after: {after:.3f}")
    axes.set(xlabel="step", ylabel="share of right answers", ylim=(0, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_heldout(
    path: Path, modality: str, rows: Sequence[dict[str, Any]], before: Sequence[str], after: Sequence[str]
) -> None:
    """One line a held-out row: what was asked, the right answer, the answers before and after."""
    path.unlink(missing_ok=True)
    with JsonlWriter(path) as writer:
        for row, first, last in zip(rows, before, after, strict=True):
            asked = row[modality][0] if modality in row else row["prompt"][0]["content"]
            writer.write({modality: asked, "gold": row["label"], "before": first, "after": last})


def print_table(rows: Sequence[dict[str, Any]], modality: str, out: TextIO, *, limit: int = 8) -> None:
    """Some held-out rows, those whose answer changed first."""
    chosen = sorted(rows, key=lambda row: row["before"] == row["after"])[:limit]
    width = max(len(modality), *(len(row[modality]) for row in chosen))
    print(f"  {modality:<{width}}  right  before  after", file=out)
    for row in chosen:
        print(f"  {row[modality]:<{width}}  {row['gold']:<5}  {row['before']:<6}  {row['after']}", file=out)


def result_line(values: dict[str, Any]) -> str:
    """The machine-readable last line."""
    return "RESULT " + dumps(
        {k: round(v, 6) if isinstance(v, float) and abs(v) > 1e-3 else v for k, v in values.items()}
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))
