# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Token sampling whose result depends on the request alone, never on the batch it is in.

    log p = log_softmax(float(logits) / T)          suppressed ids at -inf, the trainer's own function
    keep the top_k largest, then the smallest set whose mass reaches top_p; renormalise
    token = first id whose cumulated probability exceeds u * total,  u = Philox(seed, place of the token)

Shapes: B = rows, V = vocabulary. Log-probs in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relax.backends.exact.logprobs import distribution, truncate_row
from relax.utils.rng import uniforms


@dataclass(frozen=True)
class SamplingBatch:
    """Per-row settings of one sampling call; numpy arrays of length B."""

    seeds: np.ndarray  # uint64
    places: np.ndarray  # int64, index of the token in its response
    temperature: np.ndarray  # float32, 0 = greedy
    top_k: np.ndarray  # int64, -1 = all
    top_p: np.ndarray  # float64
    banned: list[tuple[int, tuple[int, ...]]]  # (row, ids) that may not be sampled now (min_new_tokens)


def sample(logits: Tensor, batch: SamplingBatch, suppressed: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    """Draw one token a row from `logits [B, V]` -> (ids int64 [B], log-probs float32 [B])."""
    greedy = batch.temperature == 0
    scale = np.where(greedy, np.float32(1), batch.temperature).astype(np.float32)
    divisor = None if (scale == 1).all() else torch.from_numpy(scale)[:, None].to(logits.device)
    for row, ids in batch.banned:
        logits[row, list(ids)] = -torch.inf
    log_p = distribution(logits, divisor, suppressed)
    log_p = _truncate(log_p, batch.top_k, batch.top_p, greedy)
    if greedy.all():
        ids = log_p.argmax(-1)
    else:
        ids = _inverse_cdf(log_p, uniforms(batch.seeds, batch.places))
        if greedy.any():
            ids = torch.where(torch.from_numpy(greedy).to(logits.device), log_p.argmax(-1), ids)
    chosen = log_p.gather(1, ids[:, None])[:, 0]
    return ids.cpu().numpy(), chosen.cpu().numpy()


def _truncate(log_p: Tensor, top_k: np.ndarray, top_p: np.ndarray, greedy: np.ndarray) -> Tensor:
    rows = np.flatnonzero(((top_k > 0) | (top_p < 1)) & ~greedy)
    if not len(rows):
        return log_p
    log_p = log_p.clone()
    for row in rows.tolist():
        log_p[row] = truncate_row(log_p[row], int(top_k[row]), float(top_p[row]))
    return log_p


def _inverse_cdf(log_p: Tensor, u: np.ndarray) -> Tensor:
    cumulated = log_p.exp().double().cumsum_(-1)
    total = cumulated[:, -1:]
    threshold = torch.from_numpy(u)[:, None].to(total.device) * total
    # u < 1, yet the product may round up to the total, which no id exceeds
    threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, threshold, right=True)[:, 0]
