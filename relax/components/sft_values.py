# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the summed terms of a loss to the numbers of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping

from relax.algorithms.supervised.bootstrap import accuracy_interval
from relax.algorithms.supervised.options import SupervisedOptions
from relax.utils.errors import InternalError

LARGEST_EXPONENT = 700.0  # exp of more is no double


def eval_values(
    options: SupervisedOptions, sums: Mapping[str, float], counts: Mapping[str, float]
) -> dict[str, float]:
    """{metric: value} of one evaluation set.

    Language models: loss in nats of a supervised token, ppl = exp(loss). Classes: the metrics of the problem type.
    Pairs: the mean of every term over pairs, and how sure the accuracy is.
    """
    if options.task_type == "seq_cls":
        from relax.algorithms.supervised.classification import classification_metrics

        return classification_metrics(options, dict(sums), dict(counts))
    means = {name: total / counts[name] for name, total in sums.items() if counts[name]}
    if options.pairs:
        values = {name.replace("/", "_"): value for name, value in means.items()}
        kind, number = options.loss_type, counts[f"{options.loss_type}/loss"]
        ahead, tied = (sums[f"{kind}/{name}"] for name in ("strict_accuracy", "tie_rate"))
        low, high = accuracy_interval(ahead, tied, number)
        return values | {f"{kind}_tie_aware_accuracy_low": low, f"{kind}_tie_aware_accuracy_high": high}
    if "sft_loss" not in means:
        raise InternalError("an evaluation without a supervised token")
    loss = means["sft_loss"]
    return {"loss": loss, "ppl": math.exp(min(loss, LARGEST_EXPONENT)), "tokens": counts["sft_loss"]}
