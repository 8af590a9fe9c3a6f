# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The one forward that training and scoring run; the root of what FSDP shards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from relax.backends.exact.logprobs import examine, head_logits
from relax.backends.exact.media import EncodedItem, PlacedItem
from relax.backends.exact.model import ExactModel
from relax.backends.fsdp.batches import PackedBatch


@dataclass(frozen=True)
class ForwardOptions:
    """How log-probs are computed; see `ModelSpec`."""

    temperature: float = 1.0
    suppressed: Tensor | None = None  # [K] int64 ids
    chunk: int = 1024
    top_p: float = 1.0  # of `examine`; training knows no truncation
    top_k: int = -1

    @property
    def truncated(self) -> bool:
        return self.top_p < 1 or self.top_k > 0


class Forward(NamedTuple):
    """Of the response tokens of a micro-batch, float32 `[R]`; None is what was not needed."""

    log_probs: Tensor | None
    entropy: Tensor | None
    values: Tensor | None
    mass_above: Tensor | None
    class_logits: Tensor | None  # [R, K]
    anchor: Tensor  # a zero


class TrainingModel(ExactModel):
    """The exact model whose `forward` runs a whole micro-batch, so that sharding hooks see one call."""

    def forward(
        self, batch: PackedBatch, needs: Collection[str], towers: Collection[str], options: ForwardOptions
    ) -> Forward:
        """What `needs` names of the response tokens, and an anchor.

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
        log_probs = entropy = values = mass_above = class_logits = None
        if "mass_above" in needs or options.truncated:
            found = examine(
                chosen,
                self.head.weight,
                self.head.bias,
                targets,
                temperature=options.temperature,
                suppressed=options.suppressed,
                top_p=options.top_p,
                top_k=options.top_k,
                chunk=options.chunk,
            )
            log_probs, mass_above = found.log_probs, found.mass_above
        elif needs & {"log_probs", "entropy"}:
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
        if "class_logits" in needs:
            class_logits = head_logits(chosen, self.head.weight, self.head.bias).float()
        if batch.empty:
            # Target ids 0 to 3 may be suppressed: their log-prob is -inf, and zero times it is not a number.
            anchor = anchor + sum(_zero(t) for t in (log_probs, values, class_logits) if t is not None)
            columns = (log_probs, entropy, values, mass_above, class_logits)
            log_probs, entropy, values, mass_above, class_logits = (None if t is None else t[:0] for t in columns)
        return Forward(log_probs, entropy, values, mass_above, class_logits, anchor)

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
