# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Divergence of a student from its teacher on the student's own tokens, one number a token.

With p the student's and q the teacher's distribution of the next token:

    reverse_kl  KL(p || q) = sum_v p log(p / q)          mode seeking
    forward_kl  KL(q || p) = sum_v q log(q / p)          mode covering
    jsd         a KL(q || m) + (1 - a) KL(p || m)        m = a p + (1 - a) q; a = 0 is reverse_kl, a = 1 forward_kl

On K ids instead of all, what to do with the rest of the mass:

    tail   the rest of each is one more id
    norm   both are divided by their mass on the K ids
    trunc  the rest is left out; the sum may be negative

On the sampled token x alone, with d = log q(x) - log p(x):

    reverse_kl  -d                     expected value KL(p || q)
    low_var_kl  exp(d) - 1 - d         the same expected value, never negative, less variance

As a loss the sampled forms are multiplied by the ratio p / p_sampled, whose gradient makes the expected gradient that
of KL(p || q). Without it that of -d is 0, and that of low_var_kl points to KL(q || p).

Sources: on-policy distillation, GKD, arXiv:2306.13649 sec. 3; sampled forms, Schulman, "Approximating KL divergence",
         2020; the mixture is GKD's generalised JSD, scaled so that both ends are the KLs themselves.
Shapes:  T = tokens, K = ids of a token (all of them, or the likeliest). Units: nats.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relax.algorithms.policy_loss import MAX_LOG_RATIO

FULL_KINDS = ("reverse_kl", "forward_kl", "jsd")
SAMPLED_KINDS = ("reverse_kl", "low_var_kl")
NORM_MODES = ("tail", "norm", "trunc")
FLOOR = -100.0  # nats; an id that one of the two never gives counts as one of this log-prob


def divergence(
    student_TK: Tensor,
    teacher_TK: Tensor,
    *,
    kind: str,
    norm: str = "tail",
    jsd_alpha: float = 0.5,
    valid_TK: Tensor | None = None,
) -> Tensor:
    """[T]; gradients flow through `student_TK`. `valid_TK` False leaves an id out (one that stands there twice).

    With all ids of the vocabulary the rest is empty, and the three norms agree.
    """
    if kind not in FULL_KINDS:
        raise ValueError(f"unknown divergence {kind!r}; known are {', '.join(FULL_KINDS)}")
    student_TK, teacher_TK = student_TK.clamp(min=FLOOR), teacher_TK.detach().clamp(min=FLOOR)
    if valid_TK is None:
        valid_TK = torch.ones_like(student_TK, dtype=torch.bool)
    p_TK, q_TK = (_completed(x, valid_TK, norm) for x in (student_TK, teacher_TK))
    kept_TK = torch.cat([valid_TK, torch.ones_like(valid_TK[:, :1])], 1) if norm == "tail" else valid_TK
    if kind == "reverse_kl":
        return _sum(p_TK.exp() * (p_TK - q_TK), kept_TK)
    if kind == "forward_kl":
        return _sum(q_TK.exp() * (q_TK - p_TK), kept_TK)
    if jsd_alpha in (0.0, 1.0):
        return divergence(
            student_TK, teacher_TK, kind="forward_kl" if jsd_alpha else "reverse_kl", norm=norm, valid_TK=valid_TK
        )
    weight = torch.tensor([jsd_alpha, 1.0 - jsd_alpha], dtype=p_TK.dtype, device=p_TK.device).log()
    middle_TK = torch.logaddexp(p_TK + weight[0], q_TK + weight[1])
    of_teacher, of_student = q_TK.exp() * (q_TK - middle_TK), p_TK.exp() * (p_TK - middle_TK)
    return _sum(jsd_alpha * of_teacher + (1.0 - jsd_alpha) * of_student, kept_TK)


def _completed(logp_TK: Tensor, valid_TK: Tensor, norm: str) -> Tensor:
    """Log-probs of the ids under `norm`, `[T, K + 1]` with a tail."""
    if norm not in NORM_MODES:
        raise ValueError(f"unknown norm {norm!r}; known are {', '.join(NORM_MODES)}")
    if norm == "trunc":
        return logp_TK
    held_TK = logp_TK.masked_fill(~valid_TK, FLOOR)
    mass_T = torch.logsumexp(held_TK.masked_fill(~valid_TK, -torch.inf), 1, keepdim=True)
    if norm == "norm":
        return held_TK - mass_T
    # log(1 - mass); rounding may leave a mass of 1 or a little above
    rest_T = torch.log((-torch.expm1(mass_T.clamp(max=0.0))).clamp(min=_smallest(logp_TK)))
    return torch.cat([held_TK, rest_T.clamp(min=FLOOR)], 1)


def _smallest(like: Tensor) -> float:
    """exp(FLOOR), or the smallest number that the type can divide by."""
    return max(torch.finfo(like.dtype).tiny, 3.7e-44)


def _sum(value_TK: Tensor, kept_TK: Tensor) -> Tensor:
    return value_TK.masked_fill(~kept_TK, 0.0).sum(1)


def sampled_divergence(student_T: Tensor, teacher_T: Tensor, *, kind: str, ratio_T: Tensor | None = None) -> Tensor:
    """[T] of the sampled tokens; gradients flow through `student_T`, and through `ratio_T` when it is given."""
    if kind not in SAMPLED_KINDS:
        raise ValueError(f"unknown divergence of sampled tokens {kind!r}; known are {', '.join(SAMPLED_KINDS)}")
    difference_T = teacher_T.detach().clamp(min=FLOOR) - student_T
    value_T = -difference_T
    if kind == "low_var_kl":
        value_T = torch.exp(difference_T.clamp(max=MAX_LOG_RATIO)) - 1.0 - difference_T
    return value_T if ratio_T is None else ratio_T * value_T


def repeated(ids_TK: Tensor) -> Tensor:
    """[T, K] bool, True where an id stands further left in its row too."""
    same = ids_TK[:, :, None] == ids_TK[:, None, :]
    return torch.tril(same, diagonal=-1).any(2)
