# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Cross-entropy of supervised tokens against numbers worked by hand."""

import math

import pytest
import torch

from relax.algorithms.loss import TokenBatch
from relax.algorithms.supervised.causal_lm import SftLoss


def token_batch(log_probs, weights):
    logp = torch.tensor(log_probs, dtype=torch.float64, requires_grad=True)
    columns = {"loss_weight": torch.tensor(weights, dtype=torch.float64)}
    return TokenBatch(logp, None, torch.ones(len(logp)), torch.zeros(len(logp), dtype=torch.long), 1, columns)


def test_the_loss_is_the_negative_log_likelihood_of_weighted_tokens():
    # p = 1/2, 1/4, 1/8 with weights 1, 1, 0: ln 2 + ln 4 = 3 ln 2 over a weight of 2
    batch = token_batch([-math.log(2), -math.log(4), -math.log(8)], [1.0, 1.0, 0.0])
    term = SftLoss()(batch)["sft_loss"]
    assert term.total.item() == pytest.approx(3 * math.log(2), rel=1e-15)
    assert term.count == 2.0
    term.total.backward()
    assert batch.log_probs.grad.tolist() == [-1.0, -1.0, 0.0]
