# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Live progress: one line a step, and between steps a status line where the output is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TextIO

WAIT_PREFIX = "perf/wait_s/"


def duration(seconds: float) -> str:
    """`75.0` -> `1:15`, `3675` -> `1:01:15`."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Prints a run's steps. `now` gives seconds on a monotonic scale; a metric that is absent is left out."""

    def __init__(
        self, total_steps: int, *, now: Callable[[], float], start: int = 0, stream: TextIO | None = None
    ) -> None:
        self._total, self._first, self._now = total_steps, start, now
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty()
        self._started_at = now()
        self._status_width = 0
        self._sampled = 0.0

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step `step` (counted from 0) is done."""
        elapsed, done = self._now() - self._started_at, step + 1 - self._first
        self._sampled += metrics.get("rollout/sampled_tokens", 0.0)
        speed = self._sampled / elapsed if elapsed > 0 and self._sampled else None
        left = (self._total - step - 1) * elapsed / max(1, done)
        self._print(f"{step_text(step, self._total, metrics, speed)}  ETA {duration(left)}")

    def status(self, text: str) -> None:
        """Replace the status line; nothing on a stream that is not a terminal."""
        if not self._live:
            return
        self._stream.write("\r" + text.ljust(self._status_width))
        self._stream.flush()
        self._status_width = len(text)

    def message(self, text: str) -> None:
        """A line of its own, above the status line."""
        self._print(text)

    def _print(self, text: str) -> None:
        if self._status_width:
            self._stream.write("\r" + " " * self._status_width + "\r")
            self._status_width = 0
        self._stream.write(text + "\n")
        self._stream.flush()


def step_text(step: int, total: int, metrics: Mapping[str, float], speed: float | None = None) -> str:
    """One step in words: `step 12/40  reward 0.680  812 tokens/s  staleness 1  waits actor 0.1s rollout 0.0s`.

    `speed` is in sampled tokens per second of the whole run: a single step's figure jumps, since sampling and training
    overlap and what was sampled is counted in the step in which it is reported.
    """
    parts = [f"step {step + 1}/{total}"]
    if "rollout/reward/mean" in metrics:
        parts.append(f"reward {metrics['rollout/reward/mean']:.3f}")
    loss = metrics.get("train/sft_loss", metrics.get("train/loss") if "sft/rows" in metrics else None)
    if loss is not None:
        parts.append(f"loss {loss:.3f}")
    if speed is not None:
        parts.append(f"{speed:.0f} tokens/s")
    if "rollout/staleness_steps/max" in metrics:
        parts.append(f"staleness {metrics['rollout/staleness_steps/max']:.0f}")
    waits = {name.removeprefix(WAIT_PREFIX): value for name, value in metrics.items() if name.startswith(WAIT_PREFIX)}
    if waits:
        parts.append("waits " + " ".join(f"{role} {seconds:.1f}s" for role, seconds in sorted(waits.items())))
    for name, value in sorted(metrics.items()):
        if name.startswith("eval/") and name.endswith("/reward/mean"):
            parts.append(f"eval {name.split('/')[1]} {value:.3f}")
    return "  ".join(parts)
