# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Multi-token prediction as an added term: depth k predicts the token k + 1 places ahead.

    loss = loss of the main head + scale / depths * sum over depths and tokens of -weight_t * log p_k(token_t)

Source: DeepSeek-V3, arXiv:2412.19437 eq. 24 and 25.
"""

from __future__ import annotations

import torch

from relax.algorithms.loss import LossFunction, Term, TokenBatch
from relax.algorithms.reduce import masked
from relax.utils.errors import InternalError


class WithMtp:
    """Another loss with the term `mtp_loss`. `only`: that loss becomes a metric and nothing but MTP is trained.

    `mtp_nll` is the same without the scale, in nats of a predicted token.
    """

    def __init__(self, loss: LossFunction, scale: float, *, only: bool = False) -> None:
        self._loss, self._scale = loss, scale
        self.needs = loss.needs | {"mtp_log_probs"}
        self.objective = ("mtp_loss",) if only else (*loss.objective, "mtp_loss")

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        if batch.mtp_log_probs is None:
            raise InternalError("the MTP term got no log-probs of the MTP layers")
        weight_T = batch.columns["loss_weight"] * batch.mask
        # NaN marks a token that a depth cannot predict: the first of a sequence.
        known_TK = ~torch.isnan(batch.mtp_log_probs)
        logp_TK = masked(batch.mtp_log_probs, known_TK)
        nll = -(logp_TK * weight_T[:, None]).sum()
        terms = dict(self._loss(batch))
        terms["mtp_loss"] = Term(nll * (self._scale / logp_TK.shape[1]), float(weight_T.sum()))
        terms["mtp_nll"] = Term(nll.detach(), float((known_TK * weight_T[:, None]).sum()))
        return terms
