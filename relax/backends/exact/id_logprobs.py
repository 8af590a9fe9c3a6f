# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Log-probs at several ids of each token, and the likeliest ids: what distillation reads of a distribution.

The distribution is that of `logprobs`, bit for bit; no more than `chunk` rows of logits exist at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relax.backends.exact.logprobs import chunk_distribution, chunk_rows


def log_probs_at(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    *,
    temperature: float = 1.0,
    suppressed: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """`[R, K]` float32 of `ids [R, K]`. Differentiable in `hidden`, `weight` and `bias`; logits are computed again."""
    return _LogProbsAt.apply(hidden, weight, bias, ids, temperature, suppressed, chunk_rows(chunk))


@torch.no_grad()
def likeliest(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    *,
    temperature: float = 1.0,
    suppressed: Tensor | None = None,
    chunk: int = 1024,
) -> tuple[Tensor, Tensor]:
    """(ids int64, log-probs float32) `[R, count]` of the likeliest ids, the first one first. Forward only."""
    ids = torch.empty(len(hidden), count, dtype=torch.int64, device=hidden.device)
    found = torch.empty(len(hidden), count, dtype=torch.float32, device=hidden.device)
    chunk = chunk_rows(chunk)
    for start in range(0, len(hidden), chunk):
        part = slice(start, start + chunk)
        full = chunk_distribution(hidden[part], weight, bias, temperature, suppressed)
        found[part], ids[part] = full.topk(count, dim=1)
    return ids, found


class _LogProbsAt(torch.autograd.Function):
    """d log p(id) / d logits = onehot(id) - p, divided by the temperature."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        temperature: float,
        suppressed: Tensor | None,
        chunk: int,
    ) -> Tensor:
        found = torch.empty(ids.shape, dtype=torch.float32, device=hidden.device)
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            full = chunk_distribution(hidden[part], weight, bias, temperature, suppressed)
            found[part] = full.gather(1, ids[part])
        ctx.save_for_backward(hidden, weight, bias, ids)
        ctx.options = (temperature, suppressed, chunk)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, ids = ctx.saved_tensors
        temperature, suppressed, chunk = ctx.options
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        grad_bias = None if bias is None else torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            rows = hidden[part]
            full = chunk_distribution(rows, weight, bias, temperature, suppressed)
            grad_logits = full.exp().mul_(-grad[part].sum(1, keepdim=True))
            grad_logits.scatter_add_(1, ids[part], grad[part].float())
            if temperature != 1.0:
                grad_logits /= temperature
            if suppressed is not None:  # an id that is never given has no gradient, whatever is asked of it
                grad_logits.index_fill_(1, suppressed, 0.0)
            grad_logits = grad_logits.to(weight.dtype)
            torch.mm(grad_logits, weight, out=grad_hidden[part])
            grad_weight += (grad_logits.t() @ rows).float()
            if grad_bias is not None:
                grad_bias += grad_logits.float().sum(0)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight.to(weight.dtype), grad_bias, None, None, None, None
