# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""--custom-loss-function-path: a user's function in the place of an algorithm's objective.

    loss(args, batch) -> Tensor [T], or {"loss": Tensor [T], name: Tensor [T], ...}

`batch` is a `loss.TokenBatch`; under the mask every float is 0. The function says what each token adds and never
averages: masks, weights, the divisor, importance weights, the KL and the entropy term are the engine's, so its
gradient does not depend on micro-batches or ranks either. Further names are logged as means over the trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from relax.algorithms.loss import TokenBatch
from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.policy_loss import PolicyLoss, safe_ratio
from relax.utils.errors import UserCodeError
from relax.utils.imports import load_callable

FLAG = "--custom-loss-function-path"
CustomObjective = Callable[[TokenBatch, Tensor], tuple[PolicyLoss, dict[str, Tensor]]]


def custom_objective(options: AlgorithmOptions) -> CustomObjective:
    """(batch, old_logp_T) -> the policy loss and the user's metrics, each [T]."""
    path = options.custom_loss_function_path or ""
    function = load_callable(path, flag=FLAG, positional=("args", "batch"))

    def objective(batch: TokenBatch, old_logp_T: Tensor) -> tuple[PolicyLoss, dict[str, Tensor]]:
        returned = function(options.args, batch)
        values = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
        check_values(values, batch, path)
        ratio_T, overflow_T = safe_ratio(batch.log_probs.detach(), old_logp_T)
        never_T = torch.zeros_like(overflow_T)
        return PolicyLoss(values.pop("loss"), ratio_T, never_T, never_T, overflow_T), values

    return objective


def check_values(values: Mapping[str, Tensor], batch: TokenBatch, path: str) -> None:
    """Raise UserCodeError unless every value is one number a token, and the loss depends on the log-probs."""
    if "loss" not in values:
        raise UserCodeError(f"{FLAG} {path} returned {sorted(values)}; one of the names must be 'loss'", path=path)
    for name, value_T in values.items():
        shape = tuple(value_T.shape) if isinstance(value_T, Tensor) else type(value_T).__name__
        if shape != tuple(batch.log_probs.shape):
            raise UserCodeError(
                f"{FLAG} {path} returned {shape} for {name!r}; it must be one number a token, a tensor of shape "
                f"{tuple(batch.log_probs.shape)}: the engine weighs and sums",
                path=path,
            )
    if batch.log_probs.requires_grad and not values["loss"].requires_grad:
        raise UserCodeError(
            f"{FLAG} {path} returned a loss without gradient: it must follow from batch.log_probs (or batch.entropy)",
            path=path,
        )
