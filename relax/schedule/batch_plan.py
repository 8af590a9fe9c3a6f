# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From one rollout to micro-batches: a pure function of lengths, printed by --dry-run and kept in the journal.

    rollout -> optimizer steps (global_batch_size samples, groups whole) -> micro-batches (next-fit by real tokens in
    uid order) -> data-parallel ranks (dealt round robin, padded with empty micro-batches)

A rollout may come in parts (`StreamedPlan`). Next-fit never looks back, so all micro-batches of a part but the last,
which the next part may still fill, are final: they are handed out, and streamed and whole training take the same cuts
in the same order.
"""

from __future__ import annotations

import heapq
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


@dataclass(frozen=True)
class PlanPiece(Generic[Uid]):
    """Micro-batches of optimizer step `step` that are final; `ranks[rank][m]` is a tuple of uids."""

    step: int
    ranks: tuple[tuple[tuple[Uid, ...], ...], ...]
    ends_step: bool


class StreamedPlan(Generic[Uid]):
    """The batch plan of one rollout whose groups come in parts, or all at once.

    `max_tokens` (per micro-batch and rank) makes dynamic micro-batches, else `micro_batch_size` static ones. The
    pieces of a step, joined, are the step: they do not depend on how the groups came.
    """

    def __init__(
        self, *, groups_per_step: int, dp_size: int, max_tokens: int | None, micro_batch_size: int | None = None
    ) -> None:
        self._groups_per_step, self._dp_size = groups_per_step, dp_size
        self._cut = (max_tokens, micro_batch_size)
        self.step = 0  # the step that the next group belongs to
        self._groups = 0  # of this step
        self._uids: list[Uid] = []
        self._lengths: list[int] = []
        self._given = 0  # micro-batches of this step that were handed out

    def extend(self, groups: Sequence[Sequence[tuple[Uid, int]]], *, last: bool) -> list[PlanPiece[Uid]]:
        """Add groups, each a sequence of (uid, length), and return what has become final. `last` ends the rollout."""
        pieces = []
        for group in groups:
            self._uids += [uid for uid, _ in group]
            self._lengths += [length for _, length in group]
            self._groups += 1
            if self._groups == self._groups_per_step:
                pieces.append(self._piece(ends_step=True))
        if self._groups:
            pieces.append(self._piece(ends_step=last))
        return [piece for piece in pieces if piece.ends_step or any(piece.ranks)]

    def _piece(self, *, ends_step: bool) -> PlanPiece[Uid]:
        micro = _micro_batches(self._uids, self._lengths, *self._cut)
        if ends_step:
            micro += [()] * (-len(micro) % self._dp_size)
        else:  # the last one is open; every rank must get equally many
            micro = micro[: (len(micro) - 1) // self._dp_size * self._dp_size]
        new = micro[self._given :]
        ranks = tuple(tuple(new[rank :: self._dp_size]) for rank in range(self._dp_size))
        piece = PlanPiece(self.step, ranks, ends_step)
        self._given = len(micro)
        if ends_step:
            self.step += 1
            self._groups, self._given, self._uids, self._lengths = 0, 0, [], []
        return piece


def split_steps(
    num_samples: int, group_size: int, global_batch_size: int, *, group_sizes: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Sample ranges [start, end) of the optimizer steps of one rollout; groups stay whole.

    `global_batch_size` must hold whole groups; the last step may be smaller when groups were dropped. With
    `group_sizes`, for groups that fanned out, a step takes as many groups as it would at their ordinary size.
    """
    in_step = groups_of_step(group_size, global_batch_size)
    if group_sizes is None:
        return [(s, min(s + global_batch_size, num_samples)) for s in range(0, num_samples, global_batch_size)]
    if sum(group_sizes) != num_samples:
        raise ValueError(f"groups of {sum(group_sizes)} samples in all, but {num_samples} samples")
    ends = [0, *accumulate(group_sizes)]
    return [(ends[g], ends[min(g + in_step, len(group_sizes))]) for g in range(0, len(group_sizes), in_step)]


def groups_of_step(group_size: int, global_batch_size: int) -> int:
    """Groups of one optimizer step."""
    if global_batch_size % group_size:
        raise ConfigError(
            f"--global-batch-size {global_batch_size} does not hold whole groups of "
            f"--n-samples-per-prompt {group_size}; use a multiple of {group_size}"
        )
    return global_batch_size // group_size


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


def plan_units(
    units: Sequence[Sequence[tuple[Uid, int]]], *, dp_size: int, max_tokens: int, balance: bool
) -> tuple[tuple[tuple[Uid, ...], ...], ...]:
    """`[rank][m]` of one optimizer step: units, each a sequence of (uid, length), stay whole in a micro-batch.

    With `balance`, as few micro-batches as hold all tokens, equally full: the longest unit goes to the one with fewest
    tokens so far (Graham's LPT rule), and the fullest micro-batches are computed beside each other. Without it,
    next-fit in the order of the units. A unit above `max_tokens` has a micro-batch of its own.
    """
    lengths = [sum(length for _, length in unit) for unit in units]
    cuts = _equal_bins(lengths, dp_size, max_tokens) if balance else _next_fit(lengths, dp_size, max_tokens)
    micro = [tuple(uid for place in cut for uid, _ in units[place]) for cut in cuts]
    return tuple(tuple(micro[rank::dp_size]) for rank in range(dp_size))


def _next_fit(lengths: Sequence[int], dp_size: int, max_tokens: int) -> list[list[int]]:
    cuts = [list(range(start, end)) for start, end in cut_by_tokens(lengths, max_tokens)]
    return cuts + [[]] * (-len(cuts) % dp_size)


def _equal_bins(lengths: Sequence[int], dp_size: int, max_tokens: int) -> list[list[int]]:
    """A multiple of `dp_size` bins, by falling load; the places in a bin in order."""
    order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    alone = [length for length in lengths if length > max_tokens]
    least = len(alone) - (sum(alone) - sum(lengths)) // max_tokens  # rounded up
    count = max(1, -(-least // dp_size)) * dp_size
    while True:
        bins: list[list[int]] = [[] for _ in range(count)]
        heap = [(0, number) for number in range(count)]  # (tokens so far, bin)
        fits = True
        for place in order:
            load, number = heapq.heappop(heap)
            fits &= not bins[number] or load + lengths[place] <= max_tokens
            bins[number].append(place)
            heapq.heappush(heap, (load + lengths[place], number))
        if fits:
            loads = {number: load for load, number in heap}
            by_load = sorted(range(count), key=lambda number: (-loads[number], number))
            return [sorted(bins[number]) for number in by_load]
        count += dp_size
