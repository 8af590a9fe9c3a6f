# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a loss says about a micro-batch, and its sums over many."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relax.backends.base import LossFunction, Term, TokenBatch
from relax.backends.fsdp.batches import PackedBatch
from relax.backends.fsdp.forward import Forward
from relax.utils.errors import InternalError


@dataclass
class Totals:
    """Sums on this rank. `seconds` are added over micro-batches, also over those that ran at the same time."""

    terms: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)  # objective terms that are not finite, with their sequences

    def add(self, terms: dict[str, Term]) -> None:
        for name, term in terms.items():
            self.terms.setdefault(name, []).append(float(term.total.detach()))
            self.counts[name] = self.counts.get(name, 0.0) + float(term.count)

    def merge(self, other: Totals) -> None:
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


def token_batch(batch: PackedBatch, found: Forward) -> TokenBatch:
    log_probs = torch.zeros_like(batch.mask) if found.log_probs is None else found.log_probs
    return TokenBatch(
        log_probs,
        found.entropy,
        batch.mask,
        batch.sequence,
        len(batch.uids),
        batch.columns,
        values=found.values,
        class_logits=found.class_logits,
        mtp_log_probs=found.mtp_log_probs,
        log_probs_at=found.log_probs_at,
    )


def objective_of(loss: LossFunction, terms: dict[str, Term], batch: PackedBatch, totals: Totals) -> Tensor:
    """Sum of the terms that are differentiated; notes those that are not finite."""
    absent = [name for name in loss.objective if name not in terms]
    if absent:
        raise InternalError(f"the loss names {absent} as objective but returned {sorted(terms)}")
    for name in loss.objective:
        if not math.isfinite(float(terms[name].total.detach())):
            first, last = batch.uids[0], batch.uids[-1]
            totals.bad.append(f"loss term {name} is not finite in samples {first} to {last} (group, index)")
    return torch.stack([terms[name].total for name in loss.objective]).sum()
