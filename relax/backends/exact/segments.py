# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which query rows see which key rows: the plan of one packed forward, for training and for the engine.

A packed forward holds the token rows of many sequences in one flat batch. A plan cuts the attention of that batch
into rectangles (`Block`) of `N` pieces x `L` query places x `C` key places. Rectangles are padded so that every
matrix product has a row count that `padded_rows` allows and a key count that is a multiple of sixteen: with that the
bits of a row depend neither on the batch around it nor on how its prompt was split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from relax.utils.errors import InternalError

if TYPE_CHECKING:
    from relax.backends.exact.kv_pool import KVPool

ROW_MULTIPLE = 4  # rows of every matrix product
# Products of fewer rows take kernels of their own, by the width of the rows (MKL with AVX-512, measured: below 6 rows
# from 96 columns on, below 11 from 256 on, below 16 from 384 on; none up to 64 columns).
MIN_ROWS = 16
NARROW = 64
KEY_MULTIPLE = 16  # key places; one vector register of float32, so that padding never moves a partial sum
MAX_QUERY_ROWS = 256  # a longer piece is cut: each cut sees only the keys up to its own end
BLOCK_OVERHEAD = 65536  # N x L x C places that cost as much as one more rectangle


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def padded_rows(count: int) -> int:
    """Rows that a product over `count` rows is padded to."""
    return max(MIN_ROWS, round_up(count, ROW_MULTIPLE))


def pad_to_product(rows: Tensor) -> Tensor:
    """`[R, D]` with zero rows behind, as many as `padded_rows` says."""
    return F.pad(rows, (0, 0, 0, padded_rows(len(rows)) - len(rows)))


def query_multiple(num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Query places a piece is padded to: heads of one key-value head share the rows of a matrix product."""
    group = num_heads // num_kv_heads
    places = ROW_MULTIPLE // math.gcd(ROW_MULTIPLE, group)
    return places if head_dim <= NARROW else round_up(-(-MIN_ROWS // group), places)


@dataclass(frozen=True)
class Segment:
    """Tokens of a packed training forward that see all tokens of their ancestors, then their own, causally."""

    tokens: np.ndarray  # [n] token ids
    parent: int | None = None  # place in the list of segments, smaller than its own
    positions: np.ndarray | None = None  # [n] or [3, n] int64; None: counted on from the parent's last position


@dataclass
class Block:
    """One rectangle of attention. Query place `n * num_queries + l` belongs to piece n."""

    rows: Tensor  # [R] int64, packed row of each real query
    slots: Tensor  # [R] int64, its query place
    num_pieces: int
    num_queries: int
    num_keys: int
    key_rows: Tensor  # [N * C] int64, rows of the key source (packed rows, or rows of the pool)
    visible: Tensor  # [N, L] int64, keys that the query sees; padding sees all of them
    _bias: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict, repr=False)
    _flat_keys: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """`[1, N, L, 1, C]`: 0 where the query sees the key, -inf elsewhere. Shared by all layers."""
        if (window, dtype) not in self._bias:
            place = torch.arange(self.num_keys, device=self.visible.device)
            end = self.visible[:, :, None]
            hidden = place >= end
            if window is not None:
                hidden |= place < end - window
            bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self._bias[window, dtype] = bias[None, :, :, None]
        return self._bias[window, dtype]

    def flat_keys(self, num_kv_heads: int) -> Tensor:
        """`[Hk * N * C]` rows of the key source seen as `[rows * Hk, d]`, heads outermost."""
        if num_kv_heads not in self._flat_keys:
            heads = torch.arange(num_kv_heads, device=self.key_rows.device)
            self._flat_keys[num_kv_heads] = (self.key_rows * num_kv_heads + heads[:, None]).reshape(-1)
        return self._flat_keys[num_kv_heads]


@dataclass
class AttentionPlan:
    """Attention of one packed forward of `num_rows` token rows, the last ones being padding."""

    num_rows: int  # as `padded_rows` says
    num_real: int
    blocks: tuple[Block, ...]
    pool: KVPool | None = None  # None: keys are the packed rows themselves
    write_rows: Tensor | None = None  # [num_real] int64, pool row of each packed row
    sequences: tuple[tuple[int, int], ...] | None = None  # first and last + 1 row of each, where all are packed whole


@dataclass(frozen=True)
class PackedSegments:
    """Segments laid out in one flat batch."""

    tokens: Tensor  # [T] int64, padded with zeros
    positions: Tensor  # [T] or [3, T] int64
    starts: np.ndarray  # [segments + 1] int64, first packed row of each segment
    plan: AttentionPlan


@dataclass(frozen=True)
class _Piece:
    start: int  # first packed row
    length: int  # query rows
    keys: np.ndarray  # [>= seen by the last query] rows of the key source, in order of position


def build_plan(segments: Sequence[Segment], *, multiple: int = ROW_MULTIPLE, device: str = "cpu") -> PackedSegments:
    """Pack training segments. `multiple` is `query_multiple(...)` of the model."""
    starts = np.concatenate([[0], np.cumsum([len(s.tokens) for s in segments])]).astype(np.int64)
    own = [np.arange(starts[i], starts[i + 1]) for i in range(len(segments))]
    chains: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    for place, segment in enumerate(segments):
        parent = segment.parent
        if parent is not None and not 0 <= parent < place:
            raise InternalError(f"segment {place}: parent {parent} must come before it")
        chains.append(own[place] if parent is None else np.concatenate([chains[parent], own[place]]))
        positions.append(_segment_positions(segment, None if parent is None else positions[parent]))
    real = int(starts[-1])
    total = padded_rows(real)
    pieces = [_Piece(int(starts[i]), len(own[i]), chains[i]) for i in range(len(segments)) if len(own[i])]
    whole = all(segment.parent is None for segment in segments)
    spans = tuple((int(rows[0]), int(rows[-1]) + 1) for rows in own if len(rows))
    plan = AttentionPlan(total, real, _blocks(pieces, multiple, device), sequences=spans if whole else None)
    tokens = np.concatenate([*(s.tokens for s in segments), np.zeros(total - real, np.int64)]).astype(np.int64)
    return PackedSegments(
        torch.from_numpy(tokens).to(device), torch.from_numpy(_join(positions, total - real)).to(device), starts, plan
    )


def _segment_positions(segment: Segment, before: np.ndarray | None) -> np.ndarray:
    if segment.positions is not None:
        return np.asarray(segment.positions, np.int64)
    first = 0 if before is None or before.size == 0 else int(before.max()) + 1
    counted = np.arange(first, first + len(segment.tokens))
    return counted if before is None or before.ndim == 1 else np.broadcast_to(counted, (3, len(counted)))


def _join(positions: list[np.ndarray], padding: int) -> np.ndarray:
    if any(p.ndim == 2 for p in positions):
        positions = [p if p.ndim == 2 else np.broadcast_to(p, (3, len(p))) for p in positions]
        return np.concatenate([*positions, np.zeros((3, padding), np.int64)], axis=1)
    return np.concatenate([*positions, np.zeros(padding, np.int64)]).astype(np.int64)


def engine_plan(
    pool: KVPool,
    row_table: np.ndarray,
    lengths: np.ndarray,
    num_new: np.ndarray,
    *,
    multiple: int = ROW_MULTIPLE,
    device: str = "cpu",
) -> AttentionPlan:
    """Plan of the engine's ragged batch of N requests: prefill pieces of any length, decode rows being one token.

    Args:
        row_table: `[N, >= max(lengths)]` int, the pool row of each token of a request in order of position; what lies
            behind a request's length is not read.
        lengths: `[N]`, tokens of each request after this forward.
        num_new: `[N]`, how many of them (the last ones) are computed now. Packed rows follow this order.
        multiple: `query_multiple(...)` of the model.
    """
    lengths, num_new = np.asarray(lengths, np.int64), np.asarray(num_new, np.int64)
    if len(lengths) == 0 or (num_new < 1).any() or (num_new > lengths).any():
        raise InternalError("engine_plan: every request needs 1 <= num_new <= length, and there must be one")
    real = int(num_new.sum())
    starts = np.cumsum(num_new) - num_new
    if (num_new == 1).all():
        blocks = _decode_blocks(pool, row_table, lengths, multiple, device)
        written = row_table[np.arange(len(lengths)), lengths - 1]
    else:
        pieces = [
            _Piece(int(starts[i]), int(num_new[i]), row_table[i, : lengths[i]].astype(np.int64))
            for i in range(len(lengths))
        ]
        blocks = _blocks(pieces, multiple, device, zero_row=pool.zero_row)
        written = np.concatenate([p.keys[len(p.keys) - p.length :] for p in pieces])
    write_rows = torch.from_numpy(written.astype(np.int64)).to(device)
    return AttentionPlan(padded_rows(real), real, blocks, pool, write_rows)


def _decode_blocks(
    pool: KVPool, row_table: np.ndarray, lengths: np.ndarray, multiple: int, device: str
) -> tuple[Block, ...]:
    """Rectangles of a batch in which every request computes one token."""
    blocks = []
    for places in _buckets(np.ones_like(lengths) * multiple, lengths):
        ends = lengths[places]
        count = round_up(int(ends.max()), KEY_MULTIPLE)
        keys = np.full((len(places), count), pool.zero_row, np.int64)
        width = min(count, row_table.shape[1])
        keys[:, :width] = np.where(np.arange(width) < ends[:, None], row_table[places, :width], pool.zero_row)
        visible = np.full((len(places), multiple), count, np.int64)
        visible[:, 0] = ends
        slots = np.arange(len(places)) * multiple
        blocks.append(_block(places, slots, keys, visible, device))
    return tuple(blocks)


def _blocks(pieces: Sequence[_Piece], multiple: int, device: str, zero_row: int | None = None) -> tuple[Block, ...]:
    """Rectangles over pieces of similar size. Padding keys are `zero_row`, or else a piece's own first key."""
    pieces = [cut for piece in pieces for cut in _cut(piece)]
    queries = np.asarray([round_up(p.length, multiple) for p in pieces], np.int64)
    counts = np.asarray([len(p.keys) for p in pieces], np.int64)
    blocks = []
    for places in _buckets(queries, counts):
        chosen = [pieces[i] for i in places]
        width, count = int(queries[places].max()), round_up(int(counts[places].max()), KEY_MULTIPLE)
        keys = np.empty((len(chosen), count), np.int64)
        visible = np.full((len(chosen), width), count, np.int64)
        for n, piece in enumerate(chosen):
            keys[n, : len(piece.keys)] = piece.keys
            keys[n, len(piece.keys) :] = piece.keys[0] if zero_row is None else zero_row
            visible[n, : piece.length] = np.arange(len(piece.keys) - piece.length, len(piece.keys)) + 1
        rows = np.concatenate([np.arange(p.start, p.start + p.length) for p in chosen])
        slots = np.concatenate([np.arange(p.length) + n * width for n, p in enumerate(chosen)])
        blocks.append(_block(rows, slots, keys, visible, device))
    return tuple(blocks)


def _cut(piece: _Piece) -> list[_Piece]:
    before = len(piece.keys) - piece.length
    cuts = range(0, piece.length, MAX_QUERY_ROWS)
    ends = [min(c + MAX_QUERY_ROWS, piece.length) for c in cuts]
    return [_Piece(piece.start + c, end - c, piece.keys[: before + end]) for c, end in zip(cuts, ends, strict=True)]


def _block(rows: np.ndarray, slots: np.ndarray, keys: np.ndarray, visible: np.ndarray, device: str) -> Block:
    tensor = lambda array: torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)  # noqa: E731
    pieces, queries = visible.shape
    return Block(
        tensor(rows), tensor(slots), pieces, queries, keys.shape[1], tensor(keys.reshape(-1)), tensor(visible)
    )


def _buckets(queries: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Places of pieces that share a rectangle, each list in order: cheap to pad, few rectangles.

    Pieces are sorted by size class (powers of two); neighbouring classes are joined while the padding that this adds
    costs less than one more rectangle.
    """
    classes: dict[tuple[int, int], list[int]] = {}
    for place, (rows, keys) in enumerate(zip(queries.tolist(), counts.tolist(), strict=True)):
        key = (max(rows - 1, 1).bit_length(), max(keys - 1, KEY_MULTIPLE - 1).bit_length())
        classes.setdefault(key, []).append(place)
    joined: list[tuple[list[int], int, int]] = []  # places, L, C
    for key in sorted(classes):
        places = classes[key]
        rows, keys = int(queries[places].max()), round_up(int(counts[places].max()), KEY_MULTIPLE)
        if joined:
            before, old_rows, old_keys = joined[-1]
            both_rows, both_keys = max(rows, old_rows), max(keys, old_keys)
            area = (len(before) + len(places)) * both_rows * both_keys
            apart = len(before) * old_rows * old_keys + len(places) * rows * keys
            if area <= apart + BLOCK_OVERHEAD:
                joined[-1] = (before + places, both_rows, both_keys)
                continue
        joined.append((places, rows, keys))
    return [np.asarray(sorted(places), np.int64) for places, _, _ in joined]
