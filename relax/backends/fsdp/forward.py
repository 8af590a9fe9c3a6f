# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The one forward that training and scoring run; the root of what FSDP shards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from relax.backends.exact.media import EncodedItem, PlacedItem
from relax.backends.exact.model import ExactModel
from relax.backends.fsdp.batches import PackedBatch


@dataclass(frozen=True)
class ForwardOptions:
    """How log-probs are computed; see `ModelSpec`."""

    temperature: float = 1.0
    suppressed: Tensor | None = None  # [K] int64 ids
    chunk: int = 1024


class TrainingModel(ExactModel):
    """The exact model whose `forward` runs a whole micro-batch, so that sharding hooks see one call."""

    def forward(
        self, batch: PackedBatch, needs: Collection[str], towers: Collection[str], options: ForwardOptions
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
        """Log-probs, entropy and values of the response tokens, as needed, and an anchor.

        The anchor is a zero that ties every parameter used by any rank into this rank's graph: an encoder that only
        another rank has data for (`towers` names the encoders used by any rank), or everything when the micro-batch
        is empty. Without it the ranks' gradient collectives would not match.
        """
        placed, anchor = self._encode(batch, towers)
        hidden = self.hidden(batch.packed.tokens, batch.packed.positions, batch.packed.plan, placed)
        rows, targets = batch.rows, batch.targets
        if batch.empty:
            rows = targets = torch.arange(4, device=hidden.device)
        chosen = hidden.index_select(0, rows)
        log_probs = entropy = values = None
        if needs & {"log_probs", "entropy"}:
            log_probs, entropy = self.log_probs(
                chosen,
                targets,
                options.temperature,
                options.suppressed,
                chunk=options.chunk,
                entropy="entropy" in needs,
            )
        if "values" in needs:
            values = self.values(chosen)
        if batch.empty:
            # Target ids 0 to 3 may be suppressed: their log-prob is -inf, and zero times it is not a number.
            anchor = anchor + sum(_zero(t) for t in (log_probs, values) if t is not None)
            log_probs, entropy, values = (None if t is None else t[:0] for t in (log_probs, entropy, values))
        return log_probs, entropy, values, anchor

    def _encode(self, batch: PackedBatch, towers: Collection[str]) -> tuple[list[PlacedItem], Tensor]:
        """Encoded items at their rows, and the zero of the encoders without data here."""
        anchor = torch.zeros((), device=self.device)
        encoded: list[EncodedItem | None] = [None] * len(batch.media)
        for name in self.towers:
            kinds = ("audio",) if name == "audio_tower" else ("image", "video")
            places = [i for i, item in enumerate(batch.media) if item.kind in kinds]
            if not places and name not in towers:
                continue
            items = self.encode_tower(name, [batch.media[i] for i in places])
            for place, item in zip(places, items, strict=False):
                encoded[place] = item
            if not places:
                # As in the text model, which drops deep features that it has no layer for.
                deep = items[-1].deepstack[: self.num_layers]
                anchor = anchor + sum(_zero(t) for t in (items[-1].embeds, *deep))
        return [PlacedItem(encoded[place], rows) for place, rows in batch.placed], anchor


def _zero(values: Tensor) -> Tensor:
    """A zero that depends on `values`, whatever they are."""
    return torch.nan_to_num(values.float(), 0.0, 0.0, 0.0).sum() * 0.0
