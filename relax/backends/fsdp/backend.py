# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""TrainBackend on torch alone: HF models, the exact packed forward, FSDP2 when there is more than one rank."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from relax.backends.base import (
    LossFunction,
    ModelSpec,
    OptimizerSpec,
    Part,
    RankInfo,
    ScoreSwitch,
    StepStats,
    Term,
    TokenBatch,
)
from relax.backends.exact.model import DTYPES, AttentionName, load_hf
from relax.backends.exact.probe import probe
from relax.backends.fsdp import checkpoint
from relax.backends.fsdp.batches import PackedBatch, pack, towers_used
from relax.backends.fsdp.distributed import Ranks
from relax.backends.fsdp.forward import Forward, ForwardOptions, TrainingModel
from relax.backends.fsdp.optimizer import Shard, ShardedAdamW
from relax.backends.fsdp.published import take_published
from relax.data.columns import TrainSequence
from relax.utils.cores import CoreShare
from relax.utils.errors import ConfigError, Divergence, InternalError

_NEEDS = frozenset({"log_probs", "entropy", "values", "mass_above"})


@dataclass
class _Totals:
    """Sums on this rank. `seconds` are added over micro-batches, also over those that ran at the same time."""

    terms: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)  # objective terms that are not finite, with their sequences

    def add(self, terms: dict[str, Term]) -> None:
        for name, term in terms.items():
            self.terms.setdefault(name, []).append(float(term.total.detach()))
            self.counts[name] = self.counts.get(name, 0.0) + float(term.count)

    def merge(self, other: _Totals) -> None:
        """Add what a later micro-batch found."""
        for name, values in other.terms.items():
            self.terms.setdefault(name, []).extend(values)
        for mine, its in ((self.counts, other.counts), (self.seconds, other.seconds)):
            for name, value in its.items():
                mine[name] = mine.get(name, 0.0) + value
        self.bad += other.bad

    def time(self, name: str, start: float) -> float:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - start
        return now


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
        self._kept: dict[str, list[Tensor]] = {}
        self._asleep = False
        self._model: TrainingModel | None = None
        self._adam: ShardedAdamW | None = None

    # ------------------------------------------------------------------ life

    def open(self, model: ModelSpec, optimizer: OptimizerSpec | None) -> RankInfo:
        """Load the model; with `optimizer` None (or `model.trainable` False) it can only score."""
        if self._model is not None:
            raise InternalError("FsdpBackend.open was called twice")
        self.spec = model
        # bf16 keeps float32 masters: a sharded model casts in its hooks, a single process in `Shard`.
        training = TrainingModel(load_hf(model.hf_path, "fp32"), attn=self._attn, value_head=self._value_head)
        training = training.to(self.ranks.device).eval()
        num_parameters = sum(p.numel() for p in training.parameters())
        exact, reason = self._probe(training)
        if model.gradient_checkpointing:
            training.gradient_checkpointing()
        if self.ranks.world_size > 1:
            self._fully_shard(training)
        self._model = training
        trainable = model.trainable and optimizer is not None
        self._shards = [Shard.of(_hf_name(name), p) for name, p in training.named_parameters()]
        if self.ranks.world_size == 1 and model.dtype == "bf16":
            for shard in self._shards:
                shard.parameter.data = shard.parameter.data.to(torch.bfloat16)
                shard.master = torch.nn.Parameter(shard.master.data)
        for shard in self._shards:
            shard.parameter.requires_grad_(trainable)
        if trainable:
            self._adam = ShardedAdamW(self._shards, optimizer, self.ranks)
        self._options = ForwardOptions(
            model.temperature,
            self._ids(model.suppressed_ids),
            model.logprob_chunk,
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
        units = [*model.text_model.layers, *model.towers.values(), model]
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
        for state in self._adam.adam.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].to(device)
        torch.cuda.empty_cache()

    def close(self) -> None:
        """Free the model and leave the process group. Idempotent."""
        self._model = self._adam = None
        self._shards, self._kept = [], {}
        self._cores.close()
        self.ranks.close()

    # ------------------------------------------------------------------ compute

    def score(
        self, part: Part, needs: frozenset[str], tag: str = "actor", switch: ScoreSwitch | None = None
    ) -> dict[tuple[int, int], dict[str, np.ndarray]]:
        """Columns by uid, float32 `[R]`, under the weights kept as `tag` ("actor": the current ones)."""
        _ = self.model
        if switch is None:
            return self._score(part, needs, tag, self._options)
        options = self._switched(switch)
        if switch.dtype in (None, self.spec.dtype):
            return self._score(part, needs, tag, options)
        with self._computing_in(switch.dtype):
            return self._score(part, needs, tag, options)

    def _switched(self, switch: ScoreSwitch) -> ForwardOptions:
        options = replace(self._options, top_p=switch.top_p, top_k=switch.top_k)
        if switch.temperature is not None:
            options = replace(options, temperature=switch.temperature)
        if switch.suppressed_ids is not None:
            options = replace(options, suppressed=self._ids(switch.suppressed_ids))
        return options

    def _ids(self, ids: Collection[int]) -> Tensor | None:
        return torch.tensor(sorted(ids), device=self.ranks.device) if ids else None

    @contextmanager
    def _computing_in(self, dtype: str) -> Iterator[None]:
        """Another type of the forward. A sharded model casts in its hooks, whose type is fixed."""
        if self.ranks.world_size > 1:
            raise NotImplementedError("a sharded model computes in one type")
        own = [shard.parameter.data for shard in self._shards]
        for shard in self._shards:
            shard.parameter.data = shard.master.data.to(DTYPES[dtype])
        try:
            yield
        finally:
            for shard, data in zip(self._shards, own, strict=True):
                shard.parameter.data = data

    def _score(
        self, part: Part, needs: frozenset[str], tag: str, options: ForwardOptions
    ) -> dict[tuple[int, int], dict[str, np.ndarray]]:
        model = self.model
        needs = self._check_needs(needs)
        columns: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        used = self._towers_of_all_ranks(part)

        def score_one(place: int) -> tuple[PackedBatch, Forward]:
            with torch.no_grad():
                batch = pack(model, part.micro_batches[place], shared_prefix=self.shared_prefix)
                return batch, model(batch, needs, used[place], options)

        current = self._swap(tag)
        try:
            with self._cores.working():
                for batch, found in self._cores.in_order(score_one, len(part.micro_batches)):
                    _by_uid(columns, batch, {n: v for n, v in found._asdict().items() if n in needs and v is not None})
        finally:
            self._forget_gathered()
            self._restore(current)
        return columns

    def backward(self, part: Part, loss: LossFunction) -> StepStats:
        """Accumulate the gradient of the sum of `loss.objective` terms over the part, undivided."""
        _ = self.model
        if self._adam is None:
            raise InternalError("FsdpBackend.backward: the rank was opened without an optimizer")
        needs = self._check_needs(loss.needs)
        totals = _Totals()
        used = self._towers_of_all_ranks(part)
        apart = self._cores.cores > 1
        start = time.perf_counter()

        def backward_one(place: int) -> tuple[_Totals, list[Tensor | None]]:
            return self._backward_one(part.micro_batches[place], used[place], loss, needs, apart=apart)

        with self._cores.working():
            for found, gradients in self._cores.in_order(backward_one, len(part.micro_batches)):
                totals.merge(found)
                for shard, gradient in zip(self._shards, gradients, strict=False):
                    shard.add(gradient)
                for shard in self._shards:
                    shard.fold()
        totals.time("forward_backward", start)
        return self._sum_over_ranks(totals)

    def _backward_one(
        self,
        sequences: Sequence[TrainSequence],
        towers: Sequence[str],
        loss: LossFunction,
        needs: frozenset[str],
        *,
        apart: bool,
    ) -> tuple[_Totals, list[Tensor | None]]:
        """What one micro-batch adds. `apart`: return its gradient, since others may be computed at the same time."""
        model, totals = self.model, _Totals()
        start = time.perf_counter()
        batch = pack(model, sequences, shared_prefix=self.shared_prefix)
        start = totals.time("pack", start)
        log_probs, entropy, values, _, total = model(batch, needs, towers, self._options)
        if not batch.empty:
            terms = loss(_token_batch(batch, log_probs, entropy, values))
            totals.add(terms)
            total = total + _objective(loss, terms, batch, totals)
        start = totals.time("forward", start)
        gradients: list[Tensor | None] = []
        if total.requires_grad and apart:
            gradients = list(torch.autograd.grad(total, [s.parameter for s in self._shards], allow_unused=True))
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
        return frozenset(needs)

    def _towers_of_all_ranks(self, part: Part) -> list[list[str]]:
        """For each micro-batch the encoders that any rank needs: all ranks must take part in their collectives."""
        names = list(self.model.towers)
        if not names:
            return [[]] * len(part.micro_batches)
        flags = torch.tensor([towers_used(self.model, s) for s in part.micro_batches], dtype=torch.float32)
        flags = self.ranks.sum(flags.reshape(-1, len(names)).to(self.ranks.device))
        return [[name for name, used in zip(names, row, strict=True) if used] for row in flags.tolist()]

    def _sum_over_ranks(self, totals: _Totals) -> StepStats:
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

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(HF name, whole tensor in the model's dtype) of parameters and persistent buffers, tied ones once."""
        dtype = DTYPES[self.spec.dtype]
        model = self.model
        for shard in self._shards:
            tensor = shard.parameter.detach()
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            yield shard.name, whole.to(dtype)
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
        if tag == "actor":
            raise InternalError('FsdpBackend.keep: the tag "actor" always means the current weights')
        self._kept[tag] = [shard.master.detach().to("cpu", copy=True) for shard in self._shards]

    def forget(self, tag: str) -> None:
        self._kept.pop(tag, None)

    def gather(self, value: Any) -> list[Any]:
        return self.ranks.gather(value)

    def _swap(self, tag: str) -> list[Tensor] | None:
        """Put the weights of `tag` in place; returns the current ones, or None for "actor"."""
        if tag == "actor":
            return None
        if tag not in self._kept:
            raise InternalError(f"no weights are kept as {tag!r}; known are {sorted(['actor', *self._kept])}")
        current = [shard.master.detach().clone() for shard in self._shards]
        self._restore(self._kept[tag])
        return current

    def load_weights(self, folder: Path) -> None:
        """Take the weights of a published version. Each rank reads the file and keeps its own piece."""
        _ = self.model
        take_published(Path(folder), self._shards)

    def _restore(self, weights: list[Tensor] | None) -> None:
        for shard, data in zip(self._shards, weights or [], strict=weights is not None):
            shard.master.data.copy_(data)
            shard.publish()

    def save(self, folder: Path, tag: str = "actor") -> None:
        _ = self.model
        current = self._swap(tag)
        try:
            checkpoint.save_checkpoint(folder, self._shards, self._adam if tag == "actor" else None, self.ranks)
        finally:
            self._restore(current)

    def load(self, folder: Path, *, optimizer: bool = True) -> None:
        _ = self.model
        checkpoint.load_checkpoint(folder, self._shards, self._adam if optimizer else None, self.ranks)

    def export_hf(self, folder: Path) -> None:
        """Write a folder that plain transformers loads; a value head is left out."""
        weights = {n: t for n, t in self.weights() if not n.startswith("value_head.")}
        if self.ranks.is_main:
            checkpoint.export_hf(self.model.hf, weights, self.spec.hf_path, folder)
        self.ranks.barrier()


def _hf_name(name: str) -> str:
    return name.removeprefix("hf.")


def _token_batch(
    batch: PackedBatch, log_probs: Tensor | None, entropy: Tensor | None, values: Tensor | None
) -> TokenBatch:
    if log_probs is None:
        log_probs = torch.zeros_like(batch.mask)
    return TokenBatch(log_probs, entropy, batch.mask, batch.sequence, len(batch.uids), batch.columns, values)


def _objective(loss: LossFunction, terms: dict[str, Term], batch: PackedBatch, totals: _Totals) -> Tensor:
    """Sum of the terms that are differentiated; notes those that are not finite."""
    absent = [name for name in loss.objective if name not in terms]
    if absent:
        raise InternalError(f"the loss names {absent} as objective but returned {sorted(terms)}")
    for name in loss.objective:
        if not math.isfinite(float(terms[name].total.detach())):
            first, last = batch.uids[0], batch.uids[-1]
            totals.bad.append(f"loss term {name} is not finite in samples {first} to {last} (group, index)")
    return torch.stack([terms[name].total for name in loss.objective]).sum()


def _by_uid(
    columns: dict[tuple[int, int], dict[str, np.ndarray]], batch: PackedBatch, found: dict[str, Tensor]
) -> None:
    arrays = {name: values.float().cpu().numpy() for name, values in found.items()}
    end = 0
    for uid, length in zip(batch.uids, batch.lengths, strict=True):
        start, end = end, end + length
        columns[uid] = {name: values[start:end].copy() for name, values in arrays.items()}
