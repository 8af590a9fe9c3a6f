# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Losses of preference pairs: DPO on a policy, Bradley-Terry on a reward head.

    DPO             d = sum_t (logp_t - ref_t) over the chosen answer, minus the same over the rejected one
                    loss = -log sigmoid(beta * d)          reward of an answer = beta * sum_t (logp_t - ref_t)
    reward model    loss = -log sigmoid(score(chosen) - score(rejected))

Sequences 2i and 2i + 1 of a micro-batch are a pair, the chosen one first; the column `preferred` says so and is
checked. Sums over tokens are float64. Terms count pairs, and so does the divisor of the step.

Sources: DPO, arXiv:2305.18290 eq. 7; Bradley-Terry reward models, arXiv:2203.02155 eq. 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from relax.algorithms.loss import Term, TokenBatch
from relax.utils.errors import InternalError


class DpoLoss:
    """Log-probs are summed over the trained tokens (`mask`) of an answer.

    reference_free: the reference is the uniform policy, so its log-probs cancel (as in arXiv:2405.14734 sec. 2.1
    without length normalisation).
    """

    needs = frozenset({"log_probs"})
    objective = ("dpo/loss",)

    def __init__(self, beta: float = 0.1, *, reference_free: bool = False) -> None:
        self.beta, self.reference_free = beta, reference_free

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        check_pairs(batch)
        mask_T = batch.mask.double()
        logp_T = batch.log_probs.double() * mask_T
        ref_T = torch.zeros_like(logp_T) if self.reference_free else batch.columns["ref_logprobs"].double() * mask_T
        # The difference of each token first: where both models agree it is 0 without rounding.
        reward_P2 = self.beta * _by_pair(logp_T - ref_T, batch)
        margin_P = reward_P2[:, 0] - reward_P2[:, 1]
        names = ("chosen", "rejected")
        terms = {"dpo/loss": Term(-F.logsigmoid(margin_P).sum(), float(len(margin_P)))}
        columns = {"logps": _by_pair(logp_T, batch), "reward": reward_P2}
        if not self.reference_free:
            columns["ref_logps"] = _by_pair(ref_T, batch)
        for kind, values_P2 in columns.items():
            for place, name in enumerate(names):
                terms[f"dpo/{kind}_{name}"] = _mean_term(values_P2[:, place])
        return terms | _ranking("dpo", margin_P)


class RewardModelLoss:
    """`class_logits [N, 1]` are the scores of whole sequences."""

    needs = frozenset({"class_logits"})
    objective = ("reward_model/loss",)

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        check_pairs(batch)
        if batch.class_logits is None or batch.class_logits.shape != (batch.num_sequences, 1):
            raise InternalError("a reward model needs one score a sequence")
        score_P2 = batch.class_logits.double().view(-1, 2)
        margin_P = score_P2[:, 0] - score_P2[:, 1]
        return {
            "reward_model/loss": Term(-F.logsigmoid(margin_P).sum(), float(len(margin_P))),
            "reward_model/score_chosen": _mean_term(score_P2[:, 0]),
            "reward_model/score_rejected": _mean_term(score_P2[:, 1]),
            **_ranking("reward_model", margin_P),
        }


def check_pairs(batch: TokenBatch) -> None:
    """Raise unless sequences alternate between chosen (1) and rejected (0)."""
    if batch.num_sequences % 2:
        raise InternalError(f"{batch.num_sequences} sequences in a micro-batch of pairs: a pair was cut")
    preferred_T, place_T = batch.columns["preferred"], batch.sequence % 2
    if bool((preferred_T != (1 - place_T)).any()):
        raise InternalError(
            "sequences of a micro-batch are not pairs of a chosen and a rejected answer, in this order"
        )


def _by_pair(values_T: Tensor, batch: TokenBatch) -> Tensor:
    """`[T]` -> sums of each sequence, `[pairs, 2]`."""
    return values_T.new_zeros(batch.num_sequences).index_add(0, batch.sequence, values_T).view(-1, 2)


def _ranking(name: str, margin_P: Tensor) -> dict[str, Term]:
    """How often the chosen answer is ahead; a tie counts one half in the tie-aware accuracy."""
    margin_P = margin_P.detach()
    ahead, tied = (margin_P > 0).double(), (margin_P == 0).double()
    return {
        f"{name}/reward_margin": _mean_term(margin_P),
        f"{name}/strict_accuracy": _mean_term(ahead),
        f"{name}/tie_rate": _mean_term(tied),
        f"{name}/tie_aware_accuracy": _mean_term(ahead + 0.5 * tied),
    }


def _mean_term(values_P: Tensor) -> Term:
    return Term(values_P.detach().sum(), float(len(values_P)))
