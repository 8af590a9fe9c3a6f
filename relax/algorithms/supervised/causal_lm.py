# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Next-token cross-entropy: loss = - sum of weight_t * log p(token_t), divided by the divisor of the step."""

from __future__ import annotations

from relax.algorithms.loss import Term, TokenBatch


class SftLoss:
    """Cross-entropy of supervised tokens. `sft_loss` in nats; its count is the sum of weights."""

    needs = frozenset({"log_probs"})
    objective = ("sft_loss",)

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        weight_T = batch.columns["loss_weight"]
        return {"sft_loss": Term(-(batch.log_probs * weight_T).sum(), float(weight_T.sum()))}
