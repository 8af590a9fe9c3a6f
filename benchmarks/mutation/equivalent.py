# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Mutants that compute the same numbers, each with the reason. A stale line fails `tests/unit/benchmarks`."""

from __future__ import annotations

from benchmarks.mutation.operators import Mutant

# file -> {line of the source, stripped: {before -> after: why no number changes}}
EQUIVALENT: dict[str, dict[str, dict[str, str]]] = {}


def why_equivalent(mutant: Mutant, source: str) -> str | None:
    """The reason, None for a mutant that must be killed."""
    line = source.splitlines()[mutant.line - 1].strip()
    return EQUIVALENT.get(mutant.path, {}).get(line, {}).get(f"{mutant.before} -> {mutant.after}")
