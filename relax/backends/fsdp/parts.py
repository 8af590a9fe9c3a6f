# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a spec adds to the model of its folder: adapters and MTP layers, which of it is trained, and how it is told."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from relax.backends.additions import LoraSpec
from relax.backends.base import ModelSpec, WeightPart
from relax.backends.exact.low_rank import is_adapter, merged_weight
from relax.backends.fsdp import lora_files
from relax.backends.fsdp.distributed import Ranks
from relax.backends.fsdp.forward import TrainingModel
from relax.backends.fsdp.lora import DropoutKey, adapter_names, add_adapters, trained_with_adapters
from relax.backends.fsdp.mtp import PREFIX as MTP
from relax.backends.fsdp.mtp import load_mtp
from relax.backends.fsdp.optimizer import Shard
from relax.utils.errors import ConfigError, InternalError


class ModelParts:
    """The additions of one opened model."""

    def __init__(self, spec: ModelSpec, ranks: Ranks) -> None:
        self.spec, self.ranks = spec, ranks
        self._dropout: DropoutKey | None = None  # with adapters alone

    @property
    def adapters(self) -> LoraSpec | None:
        return self.spec.lora if self._dropout is not None else None

    @property
    def draws_dropout(self) -> bool:
        """Micro-batches must come one after another, since each is drawn by its number."""
        return self.adapters is not None and self.adapters.dropout > 0

    def add_to(self, model: TrainingModel) -> None:
        """MTP layers are copies of plain ones, so they come first."""
        spec = self.spec
        if spec.mtp is not None:
            if not model.has_vocabulary:
                raise ConfigError("--enable-mtp-training: a head for classes predicts no token")
            model.mtp = load_mtp(model.text_model, spec.hf_path, spec.mtp)
        if spec.lora is not None:
            self._dropout = add_adapters(model.hf, model.text_model, model.towers, spec.lora)
            self._dropout.rank = self.ranks.rank

    def is_trained(self, name: str) -> bool:
        """Of a parameter's name."""
        if self.spec.mtp is not None and self.spec.mtp.only:
            return name.startswith(MTP)
        return self.spec.lora is None or trained_with_adapters(name)

    def depths(self, needs: Collection[str]) -> int:
        """How far ahead rows must see."""
        return self.spec.mtp.num_layers if self.spec.mtp is not None and "mtp_log_probs" in needs else 0

    def start_micro_batch(self, step: int) -> None:
        """The next one of the optimizer step `step`; a pass without gradients draws nothing and does not count."""
        key = self._dropout
        if key is None or not torch.is_grad_enabled():
            return
        if key.step != step:
            key.step, key.micro_batch = step, 0
        key.micro_batch += 1

    def tensors(
        self, shards: Sequence[Shard], dtype: torch.dtype, part: WeightPart = "merged"
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters whole; see `TrainBackend.weights`. Collective."""
        by_name = {shard.name: shard for shard in shards}
        for shard in shards:
            if is_adapter(shard.name) != (part == "adapters"):
                continue
            tensor = whole(shard, dtype)
            a, b = adapter_names(shard.name) if shard.name.endswith(".weight") else ("", "")
            if part == "merged" and self.adapters is not None and a in by_name:
                pair = whole(by_name[a], dtype), whole(by_name[b], dtype)
                tensor = merged_weight(tensor, *pair, self.adapters.scale)
            yield shard.name, tensor

    def write_adapter(self, folder: Path, trained: Sequence[Shard], dtype: torch.dtype, step: int) -> None:
        """Write `lora_adapter/` into `folder`. Collective."""
        if self.adapters is None:
            raise InternalError("a model without adapters writes none")
        chosen = [shard for shard in trained if not shard.name.startswith((MTP, "value_head."))]
        tensors = {shard.name: whole(shard, dtype) for shard in chosen}
        if self.ranks.is_main:
            head = None if self.spec.head is None else "score"
            target = folder / lora_files.FOLDER
            lora_files.write_adapter(target, tensors, self.adapters, base=self.spec.hf_path, step=step, head=head)


def is_mtp(name: str) -> bool:
    """Of a parameter's name."""
    return name.startswith(MTP)


def whole(shard: Shard, dtype: torch.dtype) -> Tensor:
    """The parameter on every rank. Collective."""
    tensor = shard.parameter.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to(dtype)
