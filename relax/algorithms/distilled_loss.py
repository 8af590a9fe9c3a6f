# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""On-policy distillation around any policy loss: the teacher's divergence in the advantages, or as a term of its own.

    advantage mode   A_t <- A_t - coef D_t       D_t without gradient; the policy loss does the rest
    loss mode        + coef D_t                  D_t with gradient, weighted as the policy loss is

D_t is a divergence of `distillation.py`, held within +-per_token_clip. In advantage mode the sampled form takes the
log-probs that the ratio divides by (the engine's or the trainer's before its first step), so it is one number a token
for all steps of a rollout; with ids it is that of the current weights. `only` sets A_t to 0 first: the teacher alone.

Source: on-policy distillation, arXiv:2306.13649; as a per-token advantage, Thinking Machines, "On-Policy
        Distillation", 2025. Units: nats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relax.algorithms.distillation import divergence, repeated, sampled_divergence
from relax.algorithms.distillation_options import AT_IDS, TEACHER, TEACHER_AT, DistillationOptions
from relax.algorithms.loss import LossFunction, Term, TokenBatch
from relax.algorithms.policy_loss import safe_ratio
from relax.algorithms.reduce import masked
from relax.utils.errors import InternalError


class TokenValue(NamedTuple):
    """What each token adds to a term, as the policy loss says it too."""

    value_T: Tensor
    count: float


@dataclass(frozen=True)
class _Distance:
    value_T: Tensor  # [T], with gradient; 0 on tokens that do not train
    keep_T: Tensor  # [T] bool


class DistilledLoss:
    """LossFunction of a policy loss and a teacher. `sampled_from` names the column of the log-probs sampled from."""

    def __init__(self, base: LossFunction, options: DistillationOptions, sampled_from: str | None) -> None:
        self.base, self.options, self._sampled_from = base, options, sampled_from
        self.needs = base.needs | {"log_probs"} | ({"log_probs_at"} if options.of_ids else frozenset())
        self.objective = (*base.objective, *(("opd_loss",) if options.loss_coef else ()))

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        changed, extra = self._changed(batch)
        terms = dict(self.base(changed))
        for name, term in extra.items():
            terms[name] = Term(term.value_T.sum(), term.count)
        if "loss" in terms and "opd_loss" in terms:
            terms["loss"] = Term(terms["loss"].total + terms["opd_loss"].total.detach(), terms["loss"].count)
        return terms

    def per_token(self, batch: TokenBatch) -> dict[str, Any]:
        """The terms before their sum."""
        changed, extra = self._changed(batch)
        terms: dict[str, Any] = dict(self.base.per_token(changed))  # type: ignore[attr-defined]
        if "loss" in terms and "opd_loss" in extra:
            terms["loss"] = TokenValue(terms["loss"].value_T + extra["opd_loss"].value_T.detach(), terms["loss"].count)
        return terms | extra

    def _changed(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, TokenValue]]:
        """The micro-batch that the policy loss sees, and the teacher's own terms."""
        options, distance = self.options, self._distance(batch)
        count = float(distance.keep_T.sum())
        extra = {"opd_kl": TokenValue(distance.value_T.detach(), count)}
        advantage_T = torch.zeros_like(batch.mask) if options.only else batch.columns["advantages"]
        if options.kl_coef:
            advantage_T = advantage_T - options.kl_coef * distance.value_T.detach().to(advantage_T.dtype)
        if options.loss_coef:
            weight_T = masked(batch.columns["loss_weight"].detach().to(distance.value_T.dtype), distance.keep_T)
            term_T = options.loss_coef * masked(distance.value_T, weight_T > 0) * weight_T
            extra["opd_loss"] = TokenValue(term_T, float(weight_T.sum()))
        return replace(batch, columns={**batch.columns, "advantages": advantage_T}), extra

    def _distance(self, batch: TokenBatch) -> _Distance:
        keep_T, options = batch.mask > 0, self.options
        value_T = self._of_ids(batch, keep_T) if options.of_ids else self._of_sampled(batch, keep_T)
        if options.per_token_clip is not None:
            value_T = value_T.clamp(-options.per_token_clip, options.per_token_clip)
        return _Distance(masked(value_T, keep_T), keep_T)

    def _of_ids(self, batch: TokenBatch, keep_T: Tensor) -> Tensor:
        if batch.log_probs_at is None:
            raise InternalError("the loss declares that it needs 'log_probs_at', and the backend gave none")
        teacher_TK, ids_TK = self._column(batch, TEACHER_AT), self._column(batch, AT_IDS)
        student_TK = torch.where(keep_T[:, None], batch.log_probs_at, torch.zeros_like(batch.log_probs_at))
        return divergence(
            student_TK,
            torch.where(keep_T[:, None], teacher_TK, torch.zeros_like(teacher_TK)).to(student_TK.dtype),
            kind=self.options.kl_type,
            norm=self.options.norm_mode,
            jsd_alpha=self.options.jsd_alpha,
            valid_TK=~repeated(ids_TK) if self.options.token_selection == "union" else None,
        )

    def _of_sampled(self, batch: TokenBatch, keep_T: Tensor) -> Tensor:
        current_T = masked(batch.log_probs, keep_T)
        teacher_T = masked(self._column(batch, TEACHER), keep_T).to(current_T.dtype)
        sampled_T = current_T.detach() if self._sampled_from is None else self._column(batch, self._sampled_from)
        sampled_T = masked(sampled_T, keep_T).to(current_T.dtype)
        if not self.options.loss_coef:
            return sampled_divergence(sampled_T, teacher_T, kind=self.options.kl_type)
        ratio_T = safe_ratio(current_T, sampled_T)[0]
        if self.options.is_clip is not None:
            ratio_T = ratio_T.clamp(max=self.options.is_clip)
        return sampled_divergence(current_T, teacher_T, kind=self.options.kl_type, ratio_T=ratio_T)

    def _column(self, batch: TokenBatch, name: str) -> Tensor:
        if name not in batch.columns:
            raise InternalError(f"the loss needs column {name!r}; the micro-batch has {sorted(batch.columns)}")
        return batch.columns[name].detach()
