# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the sequences of one micro-batch to packed rows: prompts once a group, responses as their children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relax.backends.exact.model import ExactModel
from relax.backends.exact.segments import PackedSegments, Segment, build_plan
from relax.data.columns import TrainSequence
from relax.utils.errors import InternalError
from relax.utils.types import MediaFeatures

_DUMMY = np.zeros(4, np.int64)  # tokens of a micro-batch without sequences


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch, ready for the forward. `R` response tokens of all sequences, in their order."""

    packed: PackedSegments
    media: tuple[MediaFeatures, ...]  # distinct items
    placed: tuple[tuple[int, np.ndarray], ...]  # (place in `media`, packed rows that it fills)
    rows: Tensor  # [R] int64, packed row whose hidden state predicts the token
    targets: Tensor  # [R] int64
    sequence: Tensor  # [R] int64
    mask: Tensor  # [R] float32
    columns: Mapping[str, Tensor]  # each [R] or [R, K] float32
    uids: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]  # response tokens of each sequence
    ahead: tuple[Tensor, ...] = ()  # [packed rows] int64 each: ids of the tokens 1, 2, ... places after each row
    place: Tensor | None = None  # [R] int64, of `rows` within its sequence; with `ahead` alone

    @property
    def empty(self) -> bool:
        return not self.uids


class _Builder:
    """Segments so far, and the rows that matter in them."""

    def __init__(self, model: ExactModel) -> None:
        self.model = model
        self.segments: list[Segment] = []
        self.num_rows = 0
        self.media: list[MediaFeatures] = []
        self.placed: list[tuple[int, np.ndarray]] = []
        self._media_places: dict[tuple[str, str, int], int] = {}

    def add(self, tokens: np.ndarray, parent: int | None, positions: np.ndarray | None) -> tuple[int, int]:
        """Append a segment; returns (its place, its first packed row)."""
        self.segments.append(Segment(tokens, parent, positions))
        start, self.num_rows = self.num_rows, self.num_rows + len(tokens)
        return len(self.segments) - 1, start

    def place_media(self, tokens: np.ndarray, features: Sequence[MediaFeatures], start: int) -> None:
        for item, rows in zip(features, self.model.media_rows(tokens, features), strict=True):
            key = (item.kind, item.sha256, item.num_tokens)
            if key not in self._media_places:
                self._media_places[key] = len(self.media)
                self.media.append(item)
            self.placed.append((self._media_places[key], rows + start))


def pack(
    model: ExactModel, sequences: Sequence[TrainSequence], *, shared_prefix: bool = True, ahead: int = 0
) -> PackedBatch:
    """Pack a micro-batch. The last token of a sequence predicts nothing and is left out of the forward.

    Args:
        shared_prefix: compute the prompt of a group once, and gather its keys for each response. A sequence whose
            prompt differs from its group's, or whose response holds media, is packed whole.
        ahead: tokens behind each row that are needed; every sequence is packed whole then.
    """
    shared_prefix = shared_prefix and not ahead
    builder = _Builder(model)
    prompts: dict[int, tuple[np.ndarray, int, int]] = {}  # group -> prompt tokens, segment, row of the last token
    shared = shared_prefix and len(sequences) > 1
    opening = _add_opening(builder, sequences) if shared else None
    rows: list[np.ndarray] = []
    for sequence in sequences:
        if not shared_prefix or model.holds_media(sequence.tokens[sequence.prompt_len :]):
            rows.append(_add_whole(builder, sequence))
        else:
            rows.append(_add_shared(builder, sequence, prompts, opening))
    if not sequences:
        builder.add(_DUMMY, None, None)
    packed = build_plan(builder.segments, multiple=model.query_multiple, device=str(model.device))
    batch = _finish(builder, packed, sequences, rows)
    return _look_ahead(batch, sequences, ahead) if ahead else batch


def _look_ahead(batch: PackedBatch, sequences: Sequence[TrainSequence], depths: int) -> PackedBatch:
    """Add the ids behind each row; 0 stands behind the end of a sequence, where no loss looks."""
    device, total = batch.rows.device, len(batch.packed.tokens)
    found = []
    for depth in range(1, depths + 1):
        ids = torch.zeros(total, dtype=torch.long)
        for sequence, start in zip(sequences, batch.packed.starts.tolist(), strict=False):
            kept = max(len(sequence.tokens) - 1, 1)
            behind = np.asarray(sequence.tokens[depth : depth + kept], np.int64)
            ids[start : start + len(behind)] = torch.from_numpy(behind)
        found.append(ids.to(device))
    places = [np.arange(s.prompt_len - 1, len(s.tokens) - 1) for s in sequences]
    place = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *places])).to(device)
    return replace(batch, ahead=tuple(found), place=place)


def _add_whole(builder: _Builder, sequence: TrainSequence) -> np.ndarray:
    tokens = np.asarray(sequence.tokens, np.int64)
    positions = builder.model.positions(tokens, sequence.media)
    kept = max(len(tokens) - 1, 1)
    _, start = builder.add(tokens[:kept], None, positions[..., :kept])
    if sequence.media or builder.model.holds_media(tokens):
        builder.place_media(tokens[:kept], sequence.media, start)
    return start + np.arange(sequence.prompt_len - 1, len(tokens) - 1)


def _add_opening(builder: _Builder, sequences: Sequence[TrainSequence]) -> tuple[int, int] | None:
    """Compute the tokens with which all prompts begin once, such as a system prompt: (segment, length) or None.

    Media end it, so that its positions are plain; each prompt keeps a last token of its own.
    """
    first = sequences[0].tokens
    length = min(s.prompt_len for s in sequences) - 1
    for sequence in sequences[1:]:
        if length < 1:
            return None
        different = np.flatnonzero(sequence.tokens[:length] != first[:length])
        length = int(different[0]) if len(different) else length
    plain = builder.model.plain_positions(first[:length])
    if plain < 1 or len({s.group for s in sequences}) < 2:
        return None
    segment, _ = builder.add(np.asarray(first[:plain], np.int64), None, np.arange(plain))
    return segment, plain


def _add_shared(
    builder: _Builder,
    sequence: TrainSequence,
    prompts: dict[int, tuple[np.ndarray, int, int]],
    opening: tuple[int, int] | None,
) -> np.ndarray:
    tokens = np.asarray(sequence.tokens, np.int64)
    prompt, response = tokens[: sequence.prompt_len], tokens[sequence.prompt_len :]
    known = prompts.get(sequence.group)
    if known is None or not np.array_equal(known[0], prompt):
        parent, before = opening or (None, 0)
        positions = builder.model.positions(prompt, sequence.media)[..., before:]
        segment, start = builder.add(prompt[before:], parent, positions)
        if sequence.media or builder.model.holds_media(prompt):
            builder.place_media(prompt, sequence.media, start - before)
        known = prompts[sequence.group] = (prompt, segment, start - before + len(prompt) - 1)
    _, segment, last_of_prompt = known
    if len(response) < 2:
        return np.full(len(response), last_of_prompt)
    _, own = builder.add(response[:-1], segment, None)
    return np.concatenate([[last_of_prompt], own + np.arange(len(response) - 1)])


def _finish(
    builder: _Builder, packed: PackedSegments, sequences: Sequence[TrainSequence], rows: list[np.ndarray]
) -> PackedBatch:
    device = builder.model.device
    lengths = [s.response_len for s in sequences]

    def tensor(arrays: list[np.ndarray], dtype: type) -> Tensor:
        joined = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
        return torch.from_numpy(joined.astype(dtype)).to(device)

    names = sorted(sequences[0].columns) if sequences else []
    for sequence in sequences:
        if sorted(sequence.columns) != names:
            raise InternalError(f"sample {sequence.uid} has columns {sorted(sequence.columns)}, others have {names}")
    return PackedBatch(
        packed,
        tuple(builder.media),
        tuple(builder.placed),
        tensor(rows, np.int64),
        tensor([s.tokens[s.prompt_len :] for s in sequences], np.int64),
        tensor([np.full(n, i) for i, n in enumerate(lengths)], np.int64),
        tensor([s.loss_mask for s in sequences], np.float32),
        {name: tensor([s.columns[name] for s in sequences], np.float32) for name in names},
        tuple(s.uid for s in sequences),
        tuple(lengths),
    )


def towers_used(model: ExactModel, sequences: Sequence[TrainSequence]) -> list[bool]:
    """Which of the model's encoders the micro-batch needs, in the order of `model.towers`."""
    kinds = {item.kind for sequence in sequences for item in sequence.media}
    needs = {"visual": {"image", "video"}, "audio_tower": {"audio"}}
    return [bool(kinds & needs[name]) for name in model.towers]
