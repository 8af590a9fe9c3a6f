# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The one forward that training and scoring run; the root of what FSDP shards."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relax.backends.exact.id_logprobs import likeliest, log_probs_at
from relax.backends.exact.logprobs import examine, head_logits, token_log_probs
from relax.backends.exact.media import EncodedItem, PlacedItem
from relax.backends.exact.model import AttentionName, ExactModel, checkpoint_layers, fill_media
from relax.backends.fsdp.batches import PackedBatch
from relax.backends.fsdp.mtp import MtpLayers, layer_arguments, media_ahead

AT_IDS = "at_ids"  # column of token ids [R, K], which float32 holds exactly below 2^24


@dataclass(frozen=True)
class ForwardOptions:
    """How log-probs are computed; see `ModelSpec`."""

    temperature: float = 1.0
    suppressed: Tensor | None = None  # [K] int64 ids
    chunk: int = 1024
    top_p: float = 1.0  # of `examine`; training knows no truncation
    top_k: int = -1
    num_top: int = 0  # likeliest ids that `top_ids` and `top_log_probs` give

    @property
    def truncated(self) -> bool:
        return self.top_p < 1 or self.top_k > 0


class Forward(NamedTuple):
    """Of the response tokens of a micro-batch, float32 `[R]` but for ids; None is what was not needed."""

    log_probs: Tensor | None
    entropy: Tensor | None
    values: Tensor | None
    mass_above: Tensor | None
    class_logits: Tensor | None  # [R, K]
    mtp_log_probs: Tensor | None  # [R, depths], NaN where a depth cannot predict the token
    anchor: Tensor  # a zero
    log_probs_at: Tensor | None = None  # [R, K] at the ids of the column `AT_IDS`
    top_ids: Tensor | None = None  # [R, K] int64
    top_log_probs: Tensor | None = None  # [R, K]

    def without_rows(self) -> Forward:
        """Of an empty micro-batch, whose forward had rows of no sequence."""
        return self._replace(**{n: t[:0] for n, t in self._asdict().items() if t is not None and n != "anchor"})


class TrainingModel(ExactModel):
    """The exact model whose `forward` runs a whole micro-batch, so that sharding hooks see one call."""

    trains = True

    def __init__(self, hf: nn.Module, *, attn: AttentionName = "exact", value_head: bool = False) -> None:
        super().__init__(hf, attn=attn, value_head=value_head)
        self.mtp: MtpLayers | None = None

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
        mtp_log_probs = self._mtp_log_probs(batch, hidden, placed, options) if "mtp_log_probs" in needs else None
        at, top_ids, top = self._of_ids(chosen, batch, needs, options)
        if batch.empty:
            # Target ids 0 to 3 may be suppressed: their log-prob is -inf, and zero times it is not a number.
            tied = (log_probs, values, class_logits, mtp_log_probs, at)
            anchor = anchor + sum(_zero(t) for t in tied if t is not None)
        found = Forward(log_probs, entropy, values, mass_above, class_logits, mtp_log_probs, anchor, at, top_ids, top)
        return found.without_rows() if batch.empty else found

    def _mtp_log_probs(
        self, batch: PackedBatch, hidden: Tensor, placed: Sequence[PlacedItem], options: ForwardOptions
    ) -> Tensor:
        """`[R, depths]` of the response tokens; in an empty micro-batch `[4, depths]` of whatever stands there."""
        mtp, detach = self.mtp, set(self.mtp.spec.detach)
        state = hidden.detach() if "backbone" in detach else hidden
        weight, bias = self.head.weight, self.head.bias
        if "lm-head" in detach:
            weight, bias = weight.detach(), None if bias is None else bias.detach()
        place = layer_arguments(self.text_model, hidden, batch.packed.positions, batch.packed.plan)
        columns = []
        for depth, ids in enumerate(batch.ahead):
            embeds = self.text_model.embed_tokens(ids)
            if placed:
                embeds, _ = fill_media(embeds, media_ahead(placed, batch.packed.starts, depth + 1))
            state = mtp(depth, state, embeds.detach() if "embedding" in detach else embeds, place)
            if batch.empty:
                rows = targets = known = torch.arange(4, device=hidden.device)
            else:
                known = torch.nonzero(batch.place > depth)[:, 0]
                rows, targets = batch.rows[known] - depth - 1, batch.targets[known]
            found, _ = token_log_probs(
                state.index_select(0, rows),
                weight,
                bias,
                targets,
                temperature=options.temperature,
                suppressed=options.suppressed,
                chunk=options.chunk,
            )
            size = 4 if batch.empty else len(batch.targets)
            columns.append(found.new_full((size,), torch.nan).index_put((known,), found))
        return torch.stack(columns, 1)

    def gradient_checkpointing(self) -> None:
        super().gradient_checkpointing()
        if self.mtp is not None:
            checkpoint_layers(self.mtp.layers)

    def _of_ids(
        self, chosen: Tensor, batch: PackedBatch, needs: Collection[str], options: ForwardOptions
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Log-probs at the ids of the column `AT_IDS`, and the likeliest ids with theirs."""
        head = (self.head.weight, self.head.bias)
        how = {"temperature": options.temperature, "suppressed": options.suppressed, "chunk": options.chunk}
        at = top_ids = top = None
        if "log_probs_at" in needs:
            ids = torch.zeros(len(chosen), 1) if batch.empty else batch.columns[AT_IDS]
            at = log_probs_at(chosen, *head, ids.to(chosen.device, torch.int64), **how)
        if needs & {"top_ids", "top_log_probs"}:
            top_ids, top = likeliest(chosen, *head, options.num_top, **how)
        return at, top_ids, top

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
