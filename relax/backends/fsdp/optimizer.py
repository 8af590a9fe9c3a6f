# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""AdamW over this rank's shards: one scaling and one clip a step, float32 masters, a learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from relax.backends.base import OptimizerSpec
from relax.backends.fsdp.distributed import Ranks
from relax.utils.errors import Divergence


def local(tensor: Tensor) -> Tensor:
    """This rank's piece, sharing storage."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def learning_rate(spec: OptimizerSpec, step: int) -> float:
    """Of optimizer step `step`, counted from 0. Warm-up is linear and ends at `lr`; decay ends at `min_lr`."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    if spec.decay_style == "constant" or spec.decay_steps is None:
        return spec.lr
    span = max(spec.decay_steps - spec.warmup_steps, 1)
    done = min(max(step + 1 - spec.warmup_steps, 0) / span, 1.0)
    left = 1.0 - done if spec.decay_style == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return spec.min_lr + (spec.lr - spec.min_lr) * left


@dataclass
class Shard:
    """One parameter on this rank. `master` is its float32 piece: the parameter's own storage unless that is bf16."""

    name: str  # HF name
    parameter: nn.Parameter  # a DTensor when sharded
    master: nn.Parameter

    @property
    def separate(self) -> bool:
        """The parameter is a rounded copy of the master."""
        return not isinstance(self.parameter, DTensor) and self.parameter.dtype != torch.float32

    @classmethod
    def of(cls, name: str, parameter: nn.Parameter) -> Shard:
        data = local(parameter.detach())
        return cls(name, parameter, nn.Parameter(data if data.dtype == torch.float32 else data.float()))

    def add(self, gradient: Tensor | None) -> None:
        """Accumulate as autograd does."""
        if gradient is not None:
            grad = self.parameter.grad
            self.parameter.grad = gradient if grad is None else grad.add_(gradient)

    def fold(self) -> None:
        """Add a bf16 gradient to the float32 one after each micro-batch."""
        if self.separate and self.parameter.grad is not None:
            grad = self.parameter.grad.float()
            self.master.grad = grad if self.master.grad is None else self.master.grad.add_(grad)
            self.parameter.grad = None

    def collect(self) -> Tensor | None:
        """This rank's float32 gradient, or None when the parameter was not used."""
        if not self.separate:
            grad = self.parameter.grad
            self.master.grad = None if grad is None else local(grad)
        return self.master.grad

    def clear(self) -> None:
        self.parameter.grad = self.master.grad = None

    def publish(self) -> None:
        """Round the master into the parameter after an update."""
        if self.separate:
            self.parameter.data.copy_(self.master.data)


def _in_main_memory(master: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(master.detach().to("cpu", copy=True))


class Update(NamedTuple):
    """What one optimizer step measured."""

    norm: float  # of the divided gradient, over all ranks, before the clip
    rate: float
    gradient: dict[str, float]  # {tensor: norm of this rank's undivided gradient}


class ShardedAdamW:
    """One optimizer a rank. Matrices decay, vectors (norms, biases) do not.

    With `spec.offload` the moments stay in main memory beside a copy of the masters, and the update is computed there.
    """

    def __init__(self, shards: list[Shard], spec: OptimizerSpec, ranks: Ranks) -> None:
        self.shards, self.spec, self.ranks = shards, spec, ranks
        self.num_steps = 0
        self._updated = {s.name: _in_main_memory(s.master) if spec.offload else s.master for s in shards}
        decayed = [self._updated[s.name] for s in shards if s.parameter.ndim >= 2]
        other = [self._updated[s.name] for s in shards if s.parameter.ndim < 2]
        groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": other, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True
        )

    @torch.no_grad()
    def step(self, divisor: float) -> Update:
        """Divide by `divisor`, clip, update, clear."""
        grads = {shard.name: grad for shard in self.shards if (grad := shard.collect()) is not None}
        norms = dict(zip(grads, torch._foreach_norm(list(grads.values())), strict=True)) if grads else {}
        norm = self._total(norms) / divisor
        if not math.isfinite(norm):
            self._diverged(grads)
        scale = 1.0 / divisor
        if self.spec.clip_grad > 0:
            scale *= min(1.0, self.spec.clip_grad / (norm + 1e-6))
        if grads and scale != 1.0:
            torch._foreach_mul_(list(grads.values()), scale)
        rate = learning_rate(self.spec, self.num_steps)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self._update(grads)
        self.num_steps += 1
        for shard in self.shards:
            shard.clear()
            shard.publish()
        return Update(
            norm, rate, dict(zip(norms, torch.stack(list(norms.values())).tolist(), strict=True)) if norms else {}
        )

    def _update(self, grads: dict[str, Tensor]) -> None:
        if not self.spec.offload:
            self.adam.step()
            return
        for name, grad in grads.items():
            self._updated[name].grad = grad.to("cpu")
        self.adam.step()
        for shard in self.shards:
            if shard.name in grads:
                shard.master.copy_(self._updated[shard.name])
                self._updated[shard.name].grad = None

    def moments(self, shard: Shard) -> dict[str, Tensor] | None:
        """`step`, `exp_avg` and `exp_avg_sq`, where they are kept; None: the parameter was never used or is frozen."""
        updated = self._updated.get(shard.name)
        return None if updated is None else self.adam.state.get(updated)

    def start_moments(self, shards: list[Shard]) -> None:
        """Zeros for these parameters and nothing for the others, for a checkpoint to be read into."""
        self.adam.state.clear()
        for shard in shards:
            updated = self._updated[shard.name].detach()
            self.adam.state[self._updated[shard.name]] = {
                "step": torch.zeros((), dtype=torch.float32, device=updated.device),
                "exp_avg": torch.zeros_like(updated),
                "exp_avg_sq": torch.zeros_like(updated),
            }

    @torch.no_grad()
    def read_masters(self) -> None:
        """The masters were changed by other hands than `step`."""
        if self.spec.offload:
            for shard in self.shards:
                self._updated[shard.name].copy_(shard.master)

    def move_moments(self, device: str) -> None:
        """To give a device's memory away and take it back. Moments that are offloaded stay where they are."""
        for state in self.adam.state.values() if not self.spec.offload else ():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].to(device)

    def _total(self, norms: dict[str, Tensor]) -> float:
        """Norm over all tensors and ranks. Squares are added in float64, in a fixed order."""
        total = torch.zeros(1, dtype=torch.float64, device=self.ranks.device)
        if norms:
            total += torch.stack(list(norms.values())).double().square().sum()
        return float(self.ranks.sum(total)) ** 0.5

    def _diverged(self, grads: dict[str, Tensor]) -> None:
        bad = [name for name, grad in grads.items() if not bool(torch.isfinite(grad).all())]
        names = sorted({name for part in self.ranks.gather(bad) for name in part})
        shown = ", ".join(names[:5]) if names else "the norm of all gradients (each tensor is finite)"
        raise Divergence(
            f"optimizer step {self.num_steps}: not a finite gradient in {shown}"
            f"{f' and {len(names) - 5} more' if len(names) > 5 else ''}; weights are unchanged. "
            f"Lower --lr or --clip-grad, or look at the rewards and log-probs of this rollout"
        )
