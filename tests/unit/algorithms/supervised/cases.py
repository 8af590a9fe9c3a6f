# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Token batches of supervised losses, in float64."""

from __future__ import annotations

import torch

from relax.algorithms.loss import TokenBatch


def whole_batch(logits, **columns) -> TokenBatch:
    """Sequences that are read at their last token: one row each. `logits [N, K]`."""
    logits = torch.as_tensor(logits, dtype=torch.float64).clone().requires_grad_()
    number = len(logits)
    tensors = {name: torch.as_tensor(values, dtype=torch.float64) for name, values in columns.items()}
    tensors.setdefault("loss_weight", torch.ones(number, dtype=torch.float64))
    places = torch.arange(number)
    return TokenBatch(torch.zeros(number), None, torch.ones(number), places, number, tensors, class_logits=logits)


def token_batch(rows: list[list[float]], masks: list[list[int]] | None = None, **columns) -> TokenBatch:
    """`rows` are log-probs by sequence; columns come flat."""
    flat = torch.tensor([v for row in rows for v in row], dtype=torch.float64, requires_grad=True)
    places = torch.tensor([n for n, row in enumerate(rows) for _ in row])
    mask = torch.ones(len(flat)) if masks is None else torch.tensor([float(m) for row in masks for m in row])
    tensors = {name: torch.as_tensor(values, dtype=torch.float64) for name, values in columns.items()}
    return TokenBatch(flat, None, mask, places, len(rows), tensors)
