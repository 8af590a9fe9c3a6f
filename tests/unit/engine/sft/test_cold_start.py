# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from relax.algorithms.loss import TokenBatch
from relax.algorithms.supervised.causal_lm import SftLoss
from relax.backends.base import Part, StepStats
from relax.engine.sft.cold_start import ColdStart, demonstration, train
from relax.utils.errors import DataError


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


def test_a_demonstration_trains_the_answer_only():
    sequence = demonstration(5, [1, 2, 3], [7, 8])
    assert sequence.tokens.tolist() == [1, 2, 3, 7, 8]
    assert (sequence.prompt_len, sequence.response_len, sequence.loss_mask.tolist()) == (3, 2, [1, 1])


def test_an_empty_answer_is_refused():
    with pytest.raises(DataError, match="demonstration 3 has no answer"):
        demonstration(3, [1], [])


class RecordingBackend:
    """A train backend that remembers what it was asked."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.divisors: list[float] = []

    def backward(self, part: Part, loss: SftLoss) -> StepStats:
        self.parts.append(part)
        return StepStats({"sft_loss": [1.0]}, counts={"sft_loss": 1.0})

    def step(self, divisor: float) -> StepStats:
        self.divisors.append(divisor)
        return StepStats(grad_norm=0.5, lr=0.1)


def test_a_step_averages_over_all_answer_tokens_of_the_batch():
    # answers of 2 and 3 tokens: every token weighs 1 and the sum is divided by 5
    backend = RecordingBackend()
    seen: list[tuple[int, float | None]] = []
    train(
        backend,  # type: ignore[arg-type]
        lambda step: [demonstration(0, [1], [2, 3]), demonstration(1, [1], [2, 3, 4])],
        ColdStart(steps=2, lr=1e-3),
        lambda step, stats: seen.append((step, stats.grad_norm)),
    )
    assert backend.divisors == [5.0, 5.0]
    assert seen == [(0, 0.5), (1, 0.5)]
    weights: Iterator[np.ndarray] = (s.columns["loss_weight"] for s in backend.parts[0].micro_batches[0])
    assert np.concatenate(list(weights)).tolist() == [1.0] * 5
