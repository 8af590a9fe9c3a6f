# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""TrainBackend on torch alone: HF models, the exact packed forward, FSDP2 when there is more than one rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relax.backends.base import (
    LossFunction,
    ModelSpec,
    OptimizerSpec,
    Part,
    RankInfo,
    ScoreSwitch,
    StepStats,
    WeightPart,
)
from relax.backends.exact.model import DTYPES, AttentionName, load_hf
from relax.backends.exact.probe import probe
from relax.backends.fsdp import checkpoint
from relax.backends.fsdp.batches import pack, towers_used
from relax.backends.fsdp.distributed import Ranks
from relax.backends.fsdp.forward import ForwardOptions, TrainingModel
from relax.backends.fsdp.kept import CURRENT, KeptWeights
from relax.backends.fsdp.optimizer import Shard, ShardedAdamW
from relax.backends.fsdp.parts import ModelParts, is_mtp
from relax.backends.fsdp.published import take_published
from relax.backends.fsdp.scoring import id_tensor, score_part, switched
from relax.backends.fsdp.totals import Totals, objective_of, token_batch
from relax.data.columns import TrainSequence
from relax.utils.cores import CoreShare
from relax.utils.errors import ConfigError, Divergence, InternalError

_OF_VOCABULARY = frozenset(
    {"log_probs", "entropy", "mass_above", "mtp_log_probs", "log_probs_at", "top_ids", "top_log_probs"}
)
_NEEDS = _OF_VOCABULARY | {"values", "class_logits"}


class FsdpBackend:
    """One rank of training; see `TrainBackend`.

    Args:
        ranks: from `init_distributed`; the default is a single process.
        shared_prefix: compute the prompt of a group once for all its responses.
        attn: "exact" (default) or "sdpa", which is faster on long sequences and never exact.
        value_head: add a critic's head, so that `values` can be needed.
        reshard_after_forward: free gathered weights between forward and backward (less memory, more traffic).
        cores: a single process on CPU computes as many micro-batches at a time as it is granted cores.
    """

    def __init__(
        self,
        ranks: Ranks | None = None,
        *,
        shared_prefix: bool = True,
        attn: AttentionName = "exact",
        value_head: bool = False,
        reshard_after_forward: bool | None = None,
        cores: CoreShare | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        alone = self.ranks.world_size == 1 and self.ranks.device == "cpu"
        self._cores = cores if cores is not None and alone else CoreShare(None)
        self.shared_prefix = shared_prefix
        self._attn: AttentionName = attn
        self._value_head = value_head
        self._reshard = (
            self.ranks.device.startswith("cuda") if reshard_after_forward is None else reshard_after_forward
        )
        self._kept = KeptWeights(())
        self._asleep = False
        self._model: TrainingModel | None = None
        self._trained: list[Shard] = []
        self._adam: ShardedAdamW | None = None

    # ------------------------------------------------------------------ life

    def open(self, model: ModelSpec, optimizer: OptimizerSpec | None) -> RankInfo:
        """Load the model; with `optimizer` None (or `model.trainable` False) it can only score."""
        if self._model is not None:
            raise InternalError("FsdpBackend.open was called twice")
        self.spec = model
        # bf16 keeps float32 masters: a sharded model casts in its hooks, a single process in `Shard`.
        training = TrainingModel(
            load_hf(model.hf_path, "fp32", model.head), attn=self._attn, value_head=self._value_head
        )
        self._parts = ModelParts(model, self.ranks)
        self._parts.add_to(training)
        training = training.to(self.ranks.device).eval()
        num_parameters = sum(p.numel() for p in training.parameters())
        exact, reason = self._probe(training)
        if model.gradient_checkpointing:
            training.gradient_checkpointing()
        if self.ranks.world_size > 1:
            self._fully_shard(training)
        self._model = training
        self.shared_prefix = self.shared_prefix and not training.has_recurrent
        trainable = model.trainable and optimizer is not None
        self._shards = [Shard.of(_hf_name(name), p) for name, p in training.named_parameters()]
        if self.ranks.world_size == 1 and model.dtype == "bf16":
            for shard in self._shards:
                shard.parameter.data = shard.parameter.data.to(torch.bfloat16)
                shard.master = torch.nn.Parameter(shard.master.data)
        self._trained = [shard for shard in self._shards if self._parts.is_trained(shard.name)]
        self._kept = KeptWeights(self._shards, self._trained)
        for shard in self._shards:
            shard.parameter.requires_grad_(False)
        if trainable:
            for shard in self._trained:
                shard.parameter.requires_grad_()
            self._adam = ShardedAdamW(self._trained, optimizer, self.ranks)
        self._options = ForwardOptions(
            model.temperature,
            id_tensor(model.suppressed_ids, self.ranks.device),
            model.logprob_chunk,
            num_top=model.num_top,
        )
        rank, world = self.ranks.rank, self.ranks.world_size
        return RankInfo(rank, world, rank, world, self.ranks.device, exact, reason, num_parameters)

    def _probe(self, model: TrainingModel) -> tuple[bool, str]:
        """Measured in the dtype of training, on every rank; exact only when every rank is."""
        masters = [p.data for p in model.parameters()]
        for parameter in model.parameters():
            parameter.data = parameter.data.to(DTYPES[self.spec.dtype])
        # Ranks must make the same tower calls: with several, items always share one.
        found = probe(model, single_calls=self.ranks.world_size == 1)
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data = master
        answers = self.ranks.gather(found)
        return next((a for a in answers if not a[0]), answers[0])

    def _fully_shard(self, model: TrainingModel) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(self.ranks.device.split(":")[0], (self.ranks.world_size,))
        compute = None if self.spec.dtype == "fp32" else DTYPES[self.spec.dtype]
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
        more = model.mtp.layers if model.mtp is not None else ()
        units = [*model.text_model.layers, *more, *model.towers.values(), model]
        for unit in units:
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=self._reshard)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # Gradients are summed over ranks; the division is `step`'s.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    @property
    def model(self) -> TrainingModel:
        if self._model is None:
            raise InternalError("FsdpBackend: call open first")
        if self._asleep:
            raise InternalError("FsdpBackend: the rank is asleep; call wake first")
        return self._model

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken."""
        return self._adam.num_steps if self._adam else 0

    def sleep(self) -> None:
        """Give the device's memory to an engine. On CPU only the order of calls is checked."""
        if self._asleep:
            raise InternalError("FsdpBackend.sleep: already asleep")
        self._move_optimizer("cpu")
        self._asleep = True

    def wake(self) -> None:
        if not self._asleep:
            raise InternalError("FsdpBackend.wake: not asleep")
        self._move_optimizer(self.ranks.device)
        self._asleep = False

    def _move_optimizer(self, device: str) -> None:
        if self._adam is None or not self.ranks.device.startswith("cuda"):
            return
        self._adam.move_moments(device)
        torch.cuda.empty_cache()

    def close(self) -> None:
        """Free the model and leave the process group. Idempotent."""
        self._model = self._adam = None
        self._shards, self._trained, self._kept = [], [], KeptWeights(())
        self._cores.close()
        self.ranks.close()

    # ------------------------------------------------------------------ compute

    def score(
        self, part: Part, needs: frozenset[str], tag: str = CURRENT, switch: ScoreSwitch | None = None
    ) -> dict[tuple[int, int], dict[str, np.ndarray]]:
        """Columns by uid, float32 `[R]`, under the weights kept as `tag` ("actor": the current ones)."""
        model, needs = self.model, self._check_needs(needs)
        options = self._options if switch is None else switched(self._options, switch, self.ranks.device)
        dtype = None if switch is None or switch.dtype == self.spec.dtype else switch.dtype
        if dtype is not None and self.ranks.world_size > 1:  # its hooks cast, to a type that is fixed
            raise NotImplementedError("a sharded model computes in one type")
        towers = self._towers_of_all_ranks(part)
        with self._kept.computing_in(dtype) if dtype is not None else nullcontext(), self._kept.in_place(tag):
            try:
                return score_part(
                    model,
                    part,
                    needs,
                    towers,
                    options,
                    shared_prefix=self.shared_prefix,
                    cores=self._cores,
                    ahead=self._parts.depths(needs),
                )
            finally:
                self._forget_gathered()

    def backward(self, part: Part, loss: LossFunction) -> StepStats:
        """Accumulate the gradient of the sum of `loss.objective` terms over the part, undivided."""
        _ = self.model
        if self._adam is None:
            raise InternalError("FsdpBackend.backward: the rank was opened without an optimizer")
        needs = self._check_needs(loss.needs)
        totals = Totals()
        used = self._towers_of_all_ranks(part)
        apart = self._cores.cores > 1 and not self._parts.draws_dropout
        start = time.perf_counter()

        def backward_one(place: int) -> tuple[Totals, list[Tensor | None]]:
            return self._backward_one(part.micro_batches[place], used[place], loss, needs, apart=apart)

        with self._cores.working():
            for found, gradients in self._cores.in_order(backward_one, len(part.micro_batches)):
                totals.merge(found)
                for shard, gradient in zip(self._trained, gradients, strict=False):
                    shard.add(gradient)
                for shard in self._trained:
                    shard.fold()
        totals.time("forward_backward", start)
        return self._sum_over_ranks(totals)

    def measure(self, part: Part, loss: LossFunction) -> StepStats:
        """The terms of `loss` over the part under the current weights, without gradients."""
        _ = self.model
        needs, totals, used = self._check_needs(loss.needs), Totals(), self._towers_of_all_ranks(part)

        def measure_one(place: int) -> Totals:
            with torch.no_grad():  # holds for one thread, so each sets it
                return self._backward_one(part.micro_batches[place], used[place], loss, needs, apart=True)[0]

        with self._cores.working():
            for found in self._cores.in_order(measure_one, len(part.micro_batches)):
                totals.merge(found)
        self._forget_gathered()
        return self._sum_over_ranks(totals)

    def _backward_one(
        self,
        sequences: Sequence[TrainSequence],
        towers: Sequence[str],
        loss: LossFunction,
        needs: frozenset[str],
        *,
        apart: bool,
    ) -> tuple[Totals, list[Tensor | None]]:
        """What one micro-batch adds. `apart`: return its gradient, since others may be computed at the same time."""
        model, totals = self.model, Totals()
        start = time.perf_counter()
        self._parts.start_micro_batch(self.num_steps)
        batch = pack(model, sequences, shared_prefix=self.shared_prefix, ahead=self._parts.depths(needs))
        start = totals.time("pack", start)
        found = model(batch, needs, towers, self._options)
        total = found.anchor
        if not batch.empty:
            terms = loss(token_batch(batch, found))
            totals.add(terms)
            total = total + objective_of(loss, terms, batch, totals)
        start = totals.time("forward", start)
        gradients: list[Tensor | None] = []
        if total.requires_grad and apart:
            gradients = list(torch.autograd.grad(total, [s.parameter for s in self._trained], allow_unused=True))
        elif total.requires_grad:
            total.backward()
        totals.time("backward", start)
        return totals, gradients

    def step(self, divisor: float) -> StepStats:
        """Divide the summed gradient by `divisor` once, clip, update and clear it."""
        if self._adam is None:
            raise InternalError("FsdpBackend.step: the rank was opened without an optimizer")
        _ = self.model
        if not (math.isfinite(divisor) and divisor > 0):
            raise Divergence(f"optimizer step {self.num_steps}: divisor {divisor}; no trained tokens in this step?")
        start = time.perf_counter()
        norm, rate, gradient = self._adam.step(divisor)
        return StepStats(grad_norm=norm, gradient=gradient, lr=rate, seconds={"step": time.perf_counter() - start})

    def _check_needs(self, needs: frozenset[str]) -> frozenset[str]:
        unknown = needs - _NEEDS
        if unknown:
            raise ConfigError(f"the loss needs {sorted(unknown)}; the fsdp backend gives {sorted(_NEEDS)}")
        if "values" in needs and not self._value_head:
            raise ConfigError("the loss needs values, but the model was opened without a value head")
        if "mtp_log_probs" in needs and self.model.mtp is None:
            raise ConfigError("the loss needs MTP log-probs, but the model was opened without MTP layers")
        has_vocabulary = self.model.has_vocabulary
        if "class_logits" in needs and has_vocabulary:
            raise ConfigError("the loss needs class logits, but the model was opened with its vocabulary head")
        if needs & _OF_VOCABULARY and not has_vocabulary:
            raise ConfigError(f"{sorted(needs & _OF_VOCABULARY)} need a vocabulary head, which this model has not")
        return frozenset(needs)

    def _towers_of_all_ranks(self, part: Part) -> list[list[str]]:
        """For each micro-batch the encoders that any rank needs: all ranks must take part in their collectives."""
        names = list(self.model.towers)
        if not names:
            return [[]] * len(part.micro_batches)
        flags = torch.tensor([towers_used(self.model, s) for s in part.micro_batches], dtype=torch.float32)
        flags = self.ranks.sum(flags.reshape(-1, len(names)).to(self.ranks.device))
        return [[name for name, used in zip(names, row, strict=True) if used] for row in flags.tolist()]

    def _sum_over_ranks(self, totals: Totals) -> StepStats:
        """Join what all ranks measured; raises `Divergence` on every rank when one met a NaN."""
        stats = StepStats(seconds=totals.seconds)
        bad: list[str] = []
        for terms, counts, found in self.ranks.gather((totals.terms, totals.counts, totals.bad)):
            bad += found
            stats.add(StepStats(terms, counts))
        if bad:
            raise Divergence(
                f"optimizer step {self.num_steps}: {'; '.join(bad[:4])}. Weights are unchanged; look at the "
                f"log-probs and advantages of these sequences"
            )
        return stats

    # ------------------------------------------------------------------ weights

    def weights(self, part: WeightPart = "merged") -> Iterator[tuple[str, Tensor]]:
        """(HF name, whole tensor in the model's dtype); see `TrainBackend.weights`.

        MTP layers are left out: no engine of this version computes them.
        """
        return ((name, tensor) for name, tensor in self._tensors(part) if not is_mtp(name))

    def _tensors(self, part: WeightPart = "merged") -> Iterator[tuple[str, Tensor]]:
        """The same with MTP layers."""
        model = self.model
        yield from self._parts.tensors(self._shards, DTYPES[self.spec.dtype], part)
        if part == "adapters":
            return
        for owner, module in model.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    yield _hf_name(f"{owner}.{name}" if owner else name), buffer.detach()

    def _forget_gathered(self) -> None:
        """Free weights that a forward without a backward left gathered: the next forward gathers the new ones."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def keep(self, tag: str) -> None:
        """Remember the current weights under `tag`, in CPU memory."""
        _ = self.model
        self._kept.keep(tag)

    def forget(self, tag: str) -> None:
        self._kept.forget(tag)

    def gather(self, value: Any) -> list[Any]:
        return self.ranks.gather(value)

    def load_weights(self, folder: Path) -> None:
        """Take a published version: an adapter where the model has one. Each rank reads it and keeps its piece."""
        _ = self.model
        take_published(Path(folder), self._shards if self._parts.adapters is None else self._trained)

    def save(self, folder: Path, tag: str = CURRENT) -> None:
        _ = self.model
        adapters = self._parts.adapters
        part = adapters is not None and adapters.save_adapter_only
        with self._kept.in_place(tag):
            checkpoint.save_checkpoint(
                folder,
                self._trained if part else self._shards,
                self._adam if tag == CURRENT else None,
                self.ranks,
                part=part,
                beside=self._write_adapter if adapters is not None else None,
            )

    def load(self, folder: Path, *, optimizer: bool = True) -> None:
        _ = self.model
        part = checkpoint.read_meta(folder).get("part", False)
        if part and self._parts.adapters is None:
            raise ConfigError(f"--load {folder} holds adapters alone (--save-lora-only): add --lora-rank")
        shards = self._trained if part else self._shards
        checkpoint.load_checkpoint(folder, shards, self._adam if optimizer else None, self.ranks)

    def export_hf(self, folder: Path) -> None:
        """Write a folder that transformers loads (peft, where the adapter stays apart), without value head."""
        adapters = self._parts.adapters
        if adapters is not None and not adapters.export_merged:
            self._write_adapter(Path(folder))
            self.ranks.barrier()
            return
        weights = {n: t for n, t in self._tensors() if not n.startswith("value_head.")}
        if self.ranks.is_main:
            checkpoint.export_hf(self.model.hf, weights, self.spec.hf_path, folder)
        self.ranks.barrier()

    def _write_adapter(self, folder: Path) -> None:
        self._parts.write_adapter(folder, self._trained, DTYPES[self.spec.dtype], self.num_steps)


def _hf_name(name: str) -> str:
    return name.removeprefix("hf.")
