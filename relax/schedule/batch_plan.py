# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From one rollout to micro-batches: a pure function of lengths, printed by --dry-run and kept in the journal.

    rollout -> optimizer steps (global_batch_size samples, groups whole) -> micro-batches (next-fit by real tokens in uid
    order) -> data-parallel ranks (dealt round robin, padded with empty micro-batches)

Nothing depends on arrival order, so streamed and whole training take the same cuts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from relax.utils.errors import ConfigError

Uid = TypeVar("Uid", bound=Hashable)


@dataclass(frozen=True)
class BatchPlan(Generic[Uid]):
    """`steps[s][rank][m]` is a tuple of uids. Every rank of a step has the same number of micro-batches."""

    steps: tuple[tuple[tuple[tuple[Uid, ...], ...], ...], ...]

    @property
    def num_steps(self) -> int:
        return len(self.steps)


def split_steps(num_samples: int, group_size: int, global_batch_size: int) -> list[tuple[int, int]]:
    """Sample ranges [start, end) of the optimizer steps of one rollout; groups stay whole.

    `global_batch_size` must hold whole groups; the last step may be smaller when groups were dropped.
    """
    if global_batch_size % group_size:
        raise ConfigError(
            f"--global-batch-size {global_batch_size} does not hold whole groups of "
            f"--n-samples-per-prompt {group_size}; use a multiple of {group_size}"
        )
    return [(s, min(s + global_batch_size, num_samples)) for s in range(0, num_samples, global_batch_size)]


def cut_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Next-fit ranges [start, end) whose token sums stay within `max_tokens`; a longer sample is a range of its own."""
    if max_tokens < 1:
        raise ConfigError(f"--max-tokens-per-gpu must be at least 1, got {max_tokens}")
    ranges, start, total = [], 0, 0
    for place, length in enumerate(lengths):
        if place > start and total + length > max_tokens:
            ranges.append((start, place))
            start, total = place, 0
        total += length
    if start < len(lengths):
        ranges.append((start, len(lengths)))
    return ranges


def cut_by_count(num_samples: int, micro_batch_size: int) -> list[tuple[int, int]]:
    """Ranges of `micro_batch_size` samples; the last may be smaller."""
    if micro_batch_size < 1:
        raise ConfigError(f"--micro-batch-size must be at least 1, got {micro_batch_size}")
    return [(s, min(s + micro_batch_size, num_samples)) for s in range(0, num_samples, micro_batch_size)]


def plan_batches(
    uids: Sequence[Uid],
    lengths: Sequence[int],
    *,
    group_size: int,
    global_batch_size: int,
    dp_size: int,
    max_tokens: int | None,
    micro_batch_size: int | None = None,
) -> BatchPlan[Uid]:
    """Cut one rollout's samples, given in uid order, into steps, ranks and micro-batches.

    `max_tokens` (per micro-batch and rank) makes dynamic micro-batches, else `micro_batch_size` static ones.
    """
    if len(uids) != len(lengths):
        raise ValueError(f"{len(uids)} uids but {len(lengths)} lengths")
    steps = []
    for start, end in split_steps(len(uids), group_size, global_batch_size):
        if max_tokens is not None:
            cuts = cut_by_tokens(lengths[start:end], max_tokens)
        else:
            cuts = cut_by_count(end - start, micro_batch_size or 1)
        micro = [tuple(uids[start + a : start + b]) for a, b in cuts]
        micro += [()] * (-len(micro) % dp_size)
        steps.append(tuple(tuple(micro[rank::dp_size]) for rank in range(dp_size)))
    return BatchPlan(tuple(steps))
