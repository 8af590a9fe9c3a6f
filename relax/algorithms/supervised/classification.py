# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Classes of whole sequences, read off the last token: cross-entropy, or one binary cross-entropy a class.

    single label   loss_n = logsumexp(z_n) - z_n[y_n]
    multi label    loss_n = mean over the K classes of softplus(z_nk) - y_nk * z_nk

as `CrossEntropyLoss` and `BCEWithLogitsLoss` of one sequence. The threshold decides metrics alone. Precision, recall
and F1 are micro averages: a ratio of two sums over all sequences and classes, so each is one term whose count is its
denominator, and parts, ranks and steps add up exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from relax.algorithms.loss import Term, TokenBatch
from relax.algorithms.supervised.options import SupervisedOptions
from relax.utils.errors import InternalError

SINGLE_METRICS = ("loss", "accuracy")
MULTI_METRICS = ("loss", "micro_precision", "micro_recall", "micro_f1", "subset_accuracy")


class SingleLabelLoss:
    """`label [N]` holds a class index."""

    needs = frozenset({"class_logits"})
    objective = ("sft_loss",)

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        logits_NK, weight_N = _logits(batch), batch.columns["loss_weight"]
        label_N = batch.columns["label"].long()
        loss_N = F.cross_entropy(logits_NK, label_N, reduction="none")
        right_N = logits_NK.detach().argmax(1) == label_N
        heard = float(weight_N.sum())
        return {
            "sft_loss": Term((loss_N * weight_N).sum(), heard),
            "accuracy": Term((right_N * weight_N).sum(), heard),
        }


class MultiLabelLoss:
    """`label [N, K]` holds 1 where a class applies, else 0."""

    needs = frozenset({"class_logits"})
    objective = ("sft_loss",)

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold_logit = math.log(threshold / (1.0 - threshold))  # sigmoid(z) >= threshold

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        logits_NK, weight_N = _logits(batch), batch.columns["loss_weight"]
        label_NK = batch.columns["label"].to(logits_NK.dtype)
        if label_NK.shape != logits_NK.shape:
            raise InternalError(f"labels {list(label_NK.shape)} for class logits {list(logits_NK.shape)}")
        loss_N = F.binary_cross_entropy_with_logits(logits_NK, label_NK, reduction="none").mean(1)
        taken_NK = (logits_NK.detach() >= self.threshold_logit).to(logits_NK.dtype)
        heard_N = (weight_N > 0).to(logits_NK.dtype)
        hits = (taken_NK * label_NK).sum(1) @ heard_N
        taken, present = taken_NK.sum(1) @ heard_N, label_NK.sum(1) @ heard_N
        whole_N = (taken_NK == label_NK).all(1)
        return {
            "sft_loss": Term((loss_N * weight_N).sum(), float(weight_N.sum())),
            "micro_precision": Term(hits, float(taken)),
            "micro_recall": Term(hits, float(present)),
            "micro_f1": Term(2 * hits, float(taken + present)),
            "subset_accuracy": Term((whole_N * heard_N).sum(), float(heard_N.sum())),
        }


def classification_metrics(
    options: SupervisedOptions, sums: dict[str, float], counts: dict[str, float]
) -> dict[str, float]:
    """The metrics of an evaluation by the documented names, from the summed terms of its batches.

    A precision of nothing predicted, a recall of nothing to find and their F1 are 0, as scikit-learn has it.
    """
    names = MULTI_METRICS if options.multi_label else SINGLE_METRICS
    terms = {name: "sft_loss" if name == "loss" else name for name in names}
    if not counts.get("sft_loss"):
        raise InternalError("classification_metrics: no sequence was evaluated")
    return {name: sums[term] / counts[term] if counts[term] else 0.0 for name, term in terms.items()}


@torch.no_grad()
def decide(logits_NK: Tensor, options: SupervisedOptions) -> list[int] | list[list[int]]:
    """Discrete results: a class index each, or the indices of the classes whose probability reaches the threshold."""
    if not options.multi_label:
        return logits_NK.argmax(1).tolist()
    threshold = options.classification_threshold
    limit = math.log(threshold / (1.0 - threshold))
    return [torch.nonzero(row >= limit)[:, 0].tolist() for row in logits_NK]


def _logits(batch: TokenBatch) -> Tensor:
    logits = batch.class_logits
    if logits is None:
        raise InternalError("a classification loss got no class logits")
    if len(logits) != batch.num_sequences:
        raise InternalError(f"{len(logits)} rows of class logits for {batch.num_sequences} sequences")
    return logits
