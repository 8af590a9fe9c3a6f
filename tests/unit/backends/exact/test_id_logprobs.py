# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Log-probs at ids against the whole distribution, and their gradients against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from relax.backends.exact.id_logprobs import likeliest, log_probs_at
from relax.backends.exact.logprobs import token_log_probs

VOCABULARY, WIDTH, ROWS = 23, 8, 21


def inputs(dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(ROWS, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    bias = torch.randn(VOCABULARY, generator=generator, dtype=dtype, requires_grad=True)
    ids = torch.randint(0, VOCABULARY, (ROWS, 5), generator=generator)
    return hidden, weight, bias, ids


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("suppressed", [None, torch.tensor([2, 9])])
def test_values_and_gradients_are_those_of_the_whole_distribution(temperature, suppressed):
    hidden, weight, bias, ids = inputs()
    found = log_probs_at(hidden, weight, bias, ids, temperature=temperature, suppressed=suppressed, chunk=16)
    logits = (hidden @ weight.T + bias) / temperature
    if suppressed is not None:
        logits = logits.index_fill(1, suppressed, -torch.inf)
    right = torch.log_softmax(logits, 1).gather(1, ids)
    open_ids = torch.isfinite(right)
    assert torch.isfinite(found).eq(open_ids).all()
    assert found[open_ids].tolist() == pytest.approx(right[open_ids].tolist(), abs=1e-5)
    factor = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)) * open_ids
    left = torch.autograd.grad((torch.nan_to_num(found, neginf=0.0) * factor).sum(), (hidden, weight, bias))
    wanted = torch.autograd.grad((torch.nan_to_num(right, neginf=0.0) * factor).sum(), (hidden, weight, bias))
    for one, other in zip(left, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_at_the_sampled_id_it_is_the_very_log_prob_of_training():
    hidden, weight, bias, ids = inputs()
    one, _ = token_log_probs(hidden, weight, bias, ids[:, 0], temperature=0.9)
    assert torch.equal(log_probs_at(hidden, weight, bias, ids, temperature=0.9)[:, 0], one)


def test_the_likeliest_ids_come_in_their_order_without_suppressed_ones():
    hidden, weight, bias, _ = inputs()
    ids, scores = likeliest(hidden, weight, bias, 4, suppressed=torch.tensor([2, 9]), chunk=16)
    full = torch.log_softmax((hidden @ weight.T + bias).index_fill(1, torch.tensor([2, 9]), -math.inf), 1)
    right = full.sort(1, descending=True)
    assert ids.tolist() == right.indices[:, :4].tolist()
    assert scores.flatten().tolist() == pytest.approx(right.values[:, :4].flatten().tolist(), abs=1e-5)
