# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Log-probs of the distribution really sampled from: one function for the engine and for training.

Order of operations, the same on both sides: rows padded (`pad_to_product`) -> head -> float -> divide by the
temperature -> suppressed ids to -inf -> log_softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from relax.backends.exact.segments import MIN_ROWS, ROW_MULTIPLE, pad_to_product


def head_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[R, D]` -> `[R, V]` in the model's dtype; rows are padded for the matrix product."""
    return F.linear(pad_to_product(hidden), weight, bias)[: len(hidden)]


def distribution(logits: Tensor, temperature: Tensor | None, suppressed: Tensor | None) -> Tensor:
    """`[R, V]` float32 log-probs.

    Args:
        temperature: `[R, 1]` float32, or None for 1. Always a tensor: a division by a Python number may be computed
            as a product with its reciprocal, which rounds differently.
        suppressed: int64 ids that are never sampled, or None.
    """
    scores = logits.float()
    if temperature is not None:
        scores = scores / temperature
    if suppressed is not None:
        scores = scores.index_fill(1, suppressed, -torch.inf)
    return torch.log_softmax(scores, -1)


def truncate_row(log_p: Tensor, top_k: int, top_p: float) -> Tensor:
    """Log-probs `[V]` of the distribution cut to top_k, then to top_p of what is left; outside -inf."""
    ordered, index = log_p.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k > 0:
        keep[top_k:] = False
    probs = ordered.exp().double() * keep
    probs = probs / probs.sum()
    keep &= (probs.cumsum(0) - probs) < top_p
    total = (ordered.exp().double() * keep).sum().log()
    kept = torch.where(keep, (ordered.double() - total).float(), -torch.inf)
    return torch.full_like(log_p, -torch.inf).scatter_(0, index, kept)


@dataclass(frozen=True)
class Examined:
    """What a diagnosis reads off a distribution, float32 `[R]`."""

    log_probs: Tensor
    mass_above: Tensor  # probability of all ids that are more likely than the target


@torch.no_grad()
def examine(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    suppressed: Tensor | None = None,
    top_p: float = 1.0,
    top_k: int = -1,
    chunk: int = 1024,
) -> Examined:
    """Log-probs of `targets [R]` in the distribution that truncation leaves, and their rank in it. Forward only."""
    chunk = chunk_rows(chunk)
    log_probs = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    above = torch.empty_like(log_probs)
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        full = chunk_distribution(hidden[part], weight, bias, temperature, suppressed)
        if top_p < 1 or top_k > 0:
            full = torch.stack([truncate_row(row, top_k, top_p) for row in full])
        own = full.gather(1, targets[part, None])
        log_probs[part] = own[:, 0]
        above[part] = (full.exp() * (full > own)).sum(1)
    return Examined(log_probs, above)


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    suppressed: Tensor | None = None,
    chunk: int = 1024,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (and entropies, nats) of `targets [R]` without ever holding more than `chunk` rows of logits.

    Differentiable in `hidden`, `weight` and `bias`; the backward computes the logits again unless they fit one chunk.
    """
    chunk = chunk_rows(chunk)
    log_probs, entropies = _TokenLogProbs.apply(hidden, weight, bias, targets, temperature, suppressed, chunk, entropy)
    return log_probs, entropies if entropy else None


class _TokenLogProbs(torch.autograd.Function):
    """d log p(target) / d logits = onehot - p;  d H / d logits = -p (log p + H); both divided by the temperature."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        suppressed: Tensor | None,
        chunk: int,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        log_probs = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        entropies = torch.zeros(len(targets) if entropy else 0, dtype=torch.float32, device=hidden.device)
        kept = None
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            full = chunk_distribution(hidden[part], weight, bias, temperature, suppressed)
            log_probs[part] = full.gather(1, targets[part, None])[:, 0]
            if entropy:
                entropies[part] = -_plogp(full).sum(1)
            kept = full if len(targets) <= chunk else None
        ctx.save_for_backward(hidden, weight, bias, targets, entropies, kept)
        ctx.options = (temperature, suppressed, chunk, entropy)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies, kept = ctx.saved_tensors
        temperature, suppressed, chunk, entropy = ctx.options
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        grad_bias = None if bias is None else torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            rows = hidden[part]
            full = kept if kept is not None else chunk_distribution(rows, weight, bias, temperature, suppressed)
            grad = full.exp().mul_(-grad_log_probs[part, None])
            if entropy:
                grad -= (_plogp(full) + full.exp() * entropies[part, None]) * grad_entropies[part, None]
            grad.scatter_add_(1, targets[part, None], grad_log_probs[part, None].float())
            if temperature != 1.0:
                grad /= temperature
            grad = grad.to(weight.dtype)
            torch.mm(grad, weight, out=grad_hidden[part])
            grad_weight.addmm_(grad.t(), rows) if weight.dtype == torch.float32 else grad_weight.add_(grad.t() @ rows)
            if grad_bias is not None:
                grad_bias += grad.float().sum(0)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight.to(weight.dtype), grad_bias, None, None, None, None, None


def chunk_rows(chunk: int) -> int:
    """Rows of logits that exist at a time when about `chunk` may: whole products, whose bits do not depend on it."""
    return max(MIN_ROWS, chunk - chunk % ROW_MULTIPLE)


def chunk_distribution(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, suppressed: Tensor | None
) -> Tensor:
    divisor = None if temperature == 1.0 else hidden.new_full((1, 1), temperature, dtype=torch.float32)
    return distribution(head_logits(hidden, weight, bias), divisor, suppressed)


def _plogp(log_probs: Tensor) -> Tensor:
    """p log p, zero where p is zero."""
    return torch.nan_to_num(log_probs.exp() * log_probs, nan=0.0, neginf=0.0)
