# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a policy-gradient step looks like from inside: ratios, mismatch, and how hard each loss term pulls.

Every number is a sum over tokens and a count, so it adds up over micro-batches and ranks; `relax.utils.metrics` has
the definitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relax.algorithms.loss import Term, TokenBatch
from relax.algorithms.policy_loss import PolicyLoss, safe_ratio
from relax.algorithms.reduce import GRADIENT_SQUARE

RATIO_EDGES = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)  # of the histogram; the first and the last range are open


def range_names(edges: Sequence[float] = RATIO_EDGES) -> tuple[str, ...]:
    inner = [f"{low:g}_{high:g}" for low, high in itertools.pairwise(edges)]
    return (f"below_{edges[0]:g}", *inner, f"above_{edges[-1]:g}")


def policy_values(policy: PolicyLoss, log_ratio_T: Tensor, advantage_T: Tensor) -> dict[str, Tensor]:
    """Of the ratio to the old policy; each [T]. Clip fractions are of what the ratio was, not of what it became."""
    values: dict[str, Tensor] = {
        "clip_fraction": policy.clipped_T,
        "dual_clip_fraction": policy.dual_clipped_T,
        "ratio": policy.ratio_T,
        "ratio_overflow_fraction": policy.overflow_T,
        "approx_kl": policy.ratio_T - 1.0 - log_ratio_T,
        "advantage_abs": advantage_T.abs(),
    }
    edges = torch.tensor(RATIO_EDGES, dtype=policy.ratio_T.dtype, device=policy.ratio_T.device)
    range_T = torch.bucketize(policy.ratio_T, edges)
    return values | {f"ratio_fraction/{name}": range_T == place for place, name in enumerate(range_names())}


def mismatch_values(logp_T: Tensor, engine_logp_T: Tensor) -> dict[str, Tensor]:
    """How far the trained policy is from the sampling one; `reduce.effective_sample_fraction` reads two of them."""
    weight_T, _ = safe_ratio(logp_T.detach(), engine_logp_T)
    return {
        "importance": weight_T,
        "importance_square": weight_T.square(),
        "log_prob_difference_abs": (logp_T.detach() - engine_logp_T).abs(),
    }


def gradient_terms(terms: Mapping[str, Term], objective: Sequence[str], batch: TokenBatch) -> dict[str, Term]:
    """For each term of the objective the sum of squares of its derivatives by log-probs (and entropies), undivided.

    Tokens of different micro-batches have derivatives of their own, so the sums add up to those of the step.
    """
    inputs = [tensor for tensor in (batch.log_probs, batch.entropy) if tensor is not None and tensor.requires_grad]
    if not inputs:
        return {}
    found = {}
    for name in objective:
        term = terms[name]
        if not term.total.requires_grad:
            continue
        gradients = torch.autograd.grad(term.total, inputs, retain_graph=True, allow_unused=True)
        squares = [gradient.square().sum() for gradient in gradients if gradient is not None]
        if squares:
            found[GRADIENT_SQUARE + name] = Term(torch.stack(squares).sum(), term.count)
    return found
