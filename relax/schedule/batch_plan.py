# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From one rollout to micro-batches: a pure function of lengths, printed by --dry-run and kept in the journal.

    rollout -> optimizer steps (global_batch_size samples, groups whole) -> micro-batches (next-fit by real tokens in
    uid order) -> data-parallel ranks (dealt round robin, padded with empty micro-batches)

Nothing depends on arrival order, so streamed and whole training take the same cuts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
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


def split_steps(
    num_samples: int, group_size: int, global_batch_size: int, *, group_sizes: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Sample ranges [start, end) of the optimizer steps of one rollout; groups stay whole.

    `global_batch_size` must hold whole groups; the last step may be smaller when groups were dropped. With
    `group_sizes`, for groups that fanned out, a step takes as many groups as it would at their ordinary size.
    """
    if global_batch_size % group_size:
        raise ConfigError(
            f"--global-batch-size {global_batch_size} does not hold whole groups of "
            f"--n-samples-per-prompt {group_size}; use a multiple of {group_size}"
        )
    if group_sizes is None:
        return [(s, min(s + global_batch_size, num_samples)) for s in range(0, num_samples, global_batch_size)]
    if sum(group_sizes) != num_samples:
        raise ValueError(f"groups of {sum(group_sizes)} samples in all, but {num_samples} samples")
    ends = [0, *accumulate(group_sizes)]
    groups = range(0, len(group_sizes), global_batch_size // group_size)
    return [(ends[g], ends[min(g + groups.step, len(group_sizes))]) for g in groups]


def cut_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Next-fit ranges [start, end) whose token sums stay within `max_tokens`; a longer sample has its own range."""
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
    group_sizes: Sequence[int] | None = None,
) -> BatchPlan[Uid]:
    """Cut one rollout's samples, given in uid order, into steps, ranks and micro-batches.

    `max_tokens` (per micro-batch and rank) makes dynamic micro-batches, else `micro_batch_size` static ones.
    """
    if len(uids) != len(lengths):
        raise ValueError(f"{len(uids)} uids but {len(lengths)} lengths")
    steps = []
    for start, end in split_steps(len(uids), group_size, global_batch_size, group_sizes=group_sizes):
        micro = _micro_batches(uids[start:end], lengths[start:end], max_tokens, micro_batch_size)
        micro += [()] * (-len(micro) % dp_size)
        steps.append(tuple(tuple(micro[rank::dp_size]) for rank in range(dp_size)))
    return BatchPlan(tuple(steps))


def plan_groups(
    groups: Sequence[Sequence[tuple[Uid, int]]], *, dp_size: int, max_tokens: int | None, micro_batch_size: int = 1
) -> BatchPlan[Uid]:
    """One pass over whole groups, each a sequence of (uid, length): a rank gets every sample of its groups.

    For roles that write a row a group. Groups are dealt round robin; every rank gets equally many micro-batches.
    """
    ranks: list[list[tuple[Uid, ...]]] = []
    for rank in range(dp_size):
        mine = [sample for group in groups[rank::dp_size] for sample in group]
        uids, lengths = [uid for uid, _ in mine], [length for _, length in mine]
        ranks.append(_micro_batches(uids, lengths, max_tokens, micro_batch_size))
    most = max(len(micro) for micro in ranks)
    return BatchPlan((tuple(tuple(micro + [()] * (most - len(micro))) for micro in ranks),))


def _micro_batches(
    uids: Sequence[Uid], lengths: Sequence[int], max_tokens: int | None, micro_batch_size: int | None
) -> list[tuple[Uid, ...]]:
    if max_tokens is not None:
        cuts = cut_by_tokens(lengths, max_tokens)
    else:
        cuts = cut_by_count(len(uids), micro_batch_size or 1)
    return [tuple(uids[start:end]) for start, end in cuts]
