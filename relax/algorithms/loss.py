# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The contract between a loss and a train backend: tokens in, additive terms out.

A loss never sees logits and never averages. It multiplies by `loss_weight` (see `reduce.py`) and returns sums; the
backend adds them over micro-batches and ranks and divides the gradient once by the divisor of the optimizer step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Term(NamedTuple):
    """One additive loss term of a part: a differentiable sum, and what it was summed over."""

    total: Tensor  # scalar, not divided by anything
    count: float  # tokens (or samples) behind the sum, for the log's mean


@dataclass(frozen=True)
class TokenBatch:
    """Response tokens of one micro-batch, flat: `T` tokens of `N` sequences, prompt tokens removed.

    `columns` holds every column of the sequences by name, float32 `[T]` (or `[T, K]` where the rows have K numbers);
    `log_probs` carries the gradient.
    """

    log_probs: Tensor  # [T] float32, nats, of the distribution really sampled from
    entropy: Tensor | None  # [T] float32, nats, only when the loss needs it
    mask: Tensor  # [T] float32, 1 where the token is sampled and trained
    sequence: Tensor  # [T] int64, place of the token's sequence in the micro-batch
    num_sequences: int
    columns: Mapping[str, Tensor]  # each [T] float32 (of ids [T, K]), no gradient
    values: Tensor | None = None  # [T] float32, a critic's head
    class_logits: Tensor | None = None  # [T, K] float32, of a head that takes the place of the vocabulary's
    mtp_log_probs: Tensor | None = None  # [T, depths] float32, NaN where a depth cannot predict the token
    log_probs_at: Tensor | None = None  # [T, K] float32, at the ids of the column `at_ids`; with gradient


class LossFunction(Protocol):
    """A loss never sees logits. It declares what it needs and returns additive terms.

    The total of the terms named in `objective` is what is differentiated; the others are metrics.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Of "log_probs", "entropy", "values", "class_logits", "mtp_log_probs", "log_probs_at"."""
        ...

    @property
    def objective(self) -> tuple[str, ...]: ...

    def __call__(self, batch: TokenBatch) -> dict[str, Term]: ...
