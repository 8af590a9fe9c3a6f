# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The scheduler's model: the exact forward that training shares, over the row-addressed KV pool."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relax.backends.exact.id_logprobs import likeliest, log_probs_at
from relax.backends.exact.kv_pool import KVPool
from relax.backends.exact.media import EncodedItem, PlacedItem
from relax.backends.exact.model import ExactModel, load_model
from relax.backends.exact.probe import probe
from relax.backends.exact.segments import engine_plan
from relax.backends.native.input_scores import InputScores
from relax.backends.native.layout import input_major, linear_weights, turning_keeps_bits
from relax.backends.native.scheduler import Segment
from relax.backends.native.weights import WeightLayout
from relax.utils.types import MediaFeatures

logger = logging.getLogger(__name__)

ENCODED_ITEMS = 256  # encoder outputs kept for prompts that come again under the same weights


class ModelRunner:
    """Implements `scheduler.Runner`. Called by the engine's worker thread only, `layout` and `checksums` aside."""

    def __init__(self, model: ExactModel, max_total_tokens: int) -> None:
        self.model = model.eval().requires_grad_(False)
        self._turned = frozenset[str]()  # names of weights that lie input by input
        if str(model.device) == "cpu":
            weights = linear_weights(model.hf)
            self._turned = frozenset(weights if turning_keeps_bits(weights) else ())
        for name, parameter in model.hf.named_parameters():  # mapped files are not aligned, and bits follow alignment
            parameter.data = input_major(parameter.data) if name in self._turned else parameter.data.clone()
        self.pool = KVPool(
            model.num_layers,
            max_total_tokens,
            model.num_kv_heads,
            model.head_dim,
            model.head.weight.dtype,
            str(model.device),
        )
        self._encoded: OrderedDict[str, EncodedItem] = OrderedDict()
        self._device = str(model.device)

    @classmethod
    def load(cls, folder: Path, *, dtype: str, attention: str, max_total_tokens: int, device: str) -> ModelRunner:
        return cls(load_model(folder, dtype, attention, device), max_total_tokens)

    def probe(self) -> tuple[bool, str]:
        """Whether the engine is bit-equal to training on this machine, and why."""
        with torch.inference_mode():
            return probe(self.model)

    # ------------------------------------------------------------------ forward

    def prefill(self, segments: Sequence[Segment]) -> list[Tensor]:
        """See `scheduler.Runner`. One packed forward."""
        counts = np.asarray([len(s.ids) for s in segments], np.int64)
        lengths = counts + np.asarray([len(s.parent) for s in segments], np.int64)
        table = np.full((len(segments), int(lengths.max())), self.pool.zero_row, np.int64)
        for row, segment in enumerate(segments):
            table[row, : len(segment.parent)] = segment.parent
            table[row, len(segment.parent) : lengths[row]] = segment.rows
        hidden = self._forward(
            np.concatenate([s.ids for s in segments]),
            _joined_positions(segments),
            table,
            lengths,
            counts,
            self._placed(segments, np.cumsum(counts) - counts),
        )
        parts = hidden[: int(counts.sum())].split(counts.tolist())
        return [part if s.every_row else part[-1:] for part, s in zip(parts, segments, strict=True)]

    def decode(self, ids: np.ndarray, positions: np.ndarray, keys: np.ndarray, lengths: np.ndarray) -> Tensor:
        """See `scheduler.Runner`."""
        return self._forward(ids, positions, keys, lengths, np.ones_like(lengths))[: len(ids)]

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def input_scores(self, hidden: Tensor, targets: np.ndarray, top: int, ids: np.ndarray | None) -> InputScores:
        """See `scheduler.Runner`. The functions are those of the training backend's forward."""
        head = (self.model.head.weight, self.model.head.bias)
        own, _ = self.model.log_probs(hidden, torch.from_numpy(targets).to(self._device))
        rivals = named = None
        if top:
            likely_ids, likely = likeliest(hidden, *head, top)
            rivals = (likely_ids.cpu().numpy(), likely.cpu().numpy())
        if ids is not None:
            at = torch.from_numpy(np.array(ids)).to(self._device)
            named = (ids, log_probs_at(hidden, *head, at).cpu().numpy())
        return InputScores(own.cpu().numpy(), rivals, named)

    def _forward(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        table: np.ndarray,
        lengths: np.ndarray,
        counts: np.ndarray,
        placed: Sequence[PlacedItem] = (),
    ) -> Tensor:
        plan = engine_plan(self.pool, table, lengths, counts, multiple=self.model.query_multiple, device=self._device)
        where = torch.from_numpy(np.ascontiguousarray(positions)).to(self._device)
        return self.model.hidden(torch.from_numpy(ids).to(self._device), where, plan, placed)

    # ------------------------------------------------------------------ media

    def _placed(self, segments: Sequence[Segment], starts: np.ndarray) -> list[PlacedItem]:
        """Items of all segments at their packed rows; new ones share one encoder call a modality."""
        rows = [
            start + of_item
            for start, segment in zip(starts.tolist(), segments, strict=True)
            if segment.media
            for of_item in self.model.media_rows(segment.ids, segment.media)
        ]
        items = self._encode([item for segment in segments for item in segment.media]) if rows else []
        return [PlacedItem(item, where) for item, where in zip(items, rows, strict=True)]

    def _encode(self, items: Sequence[MediaFeatures]) -> list[EncodedItem]:
        """Encoder outputs of `items`; equal ones are computed once under the same weights."""
        keys = [item.sha256 + item.kind for item in items]
        fresh = {key: item for key, item in zip(keys, items, strict=True) if key not in self._encoded}
        for key, encoded in zip(fresh, self.model.encode_media(list(fresh.values())) if fresh else (), strict=True):
            self._encoded[key] = encoded
        out = [self._encoded[key] for key in keys]
        while len(self._encoded) > ENCODED_ITEMS:
            self._encoded.popitem(last=False)
        return out

    # ------------------------------------------------------------------ weights

    def layout(self) -> WeightLayout:
        """Names of the HF state dict; of tied tensors the first name counts, the others are optional."""
        state = self.model.hf.state_dict()
        first: dict[int, str] = {}
        for name, tensor in state.items():
            first.setdefault(tensor.data_ptr(), name)
        tied = {name for name, tensor in state.items() if first[tensor.data_ptr()] != name}
        return WeightLayout(
            {name: tuple(tensor.shape) for name, tensor in state.items()},
            {name: tensor.dtype for name, tensor in state.items()},
            frozenset(tied),
            self._turned,
        )

    def install(self, tensors: Mapping[str, Tensor]) -> None:
        """Put checked tensors in place, by pointer: no copy, no half-new model."""
        own: dict[str, Any] = dict(self.model.hf.named_parameters(remove_duplicate=False))
        own |= dict(self.model.hf.named_buffers(remove_duplicate=False))
        seen: set[int] = set()
        for name, tensor in tensors.items():
            target = own[name]
            if id(target) not in seen:
                target.data = tensor.to(self._device)
                seen.add(id(target))
        self._encoded.clear()

    def state(self) -> dict[str, Tensor]:
        return self.model.hf.state_dict()


def _joined_positions(segments: Sequence[Segment]) -> np.ndarray:
    parts = [s.positions for s in segments]
    if any(p.ndim == 2 for p in parts):
        parts = [p if p.ndim == 2 else np.broadcast_to(p, (3, len(p))) for p in parts]
        return np.concatenate(parts, axis=1)
    return np.concatenate(parts)
