# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Chunked log-probs and entropies against whole logits in float64."""

import math

import pytest
import torch

from relax.backends.exact.logprobs import distribution, head_logits, token_log_probs


def _case(rows=37, width=12, vocabulary=29, bias=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(shape, generator=generator).requires_grad_()  # noqa: E731
    targets = torch.randint(3, vocabulary, (rows,), generator=generator)
    return make(rows, width), make(vocabulary, width), make(vocabulary) if bias else None, targets


def _whole(hidden, weight, bias, targets, temperature, suppressed):
    logits = (
        torch.nn.functional.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
        / temperature
    )
    if suppressed is not None:
        keep = [i for i in range(len(weight)) if i not in suppressed.tolist()]
        logits = logits[:, keep]
        targets = torch.tensor([keep.index(t) for t in targets.tolist()])
    full = logits.log_softmax(-1)
    return full.gather(1, targets[:, None])[:, 0], -(full.exp() * full).sum(1)


@pytest.mark.parametrize("chunk", [4, 10, 36, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("suppress", [None, torch.tensor([0, 2])])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_equal_those_of_whole_logits(chunk, temperature, suppress, bias):
    case = _case(bias=bias)
    leaves = [t for t in case[:3] if t is not None]
    weights = torch.linspace(-1, 1, 37)
    log_probs, entropy = token_log_probs(
        *case, temperature=temperature, suppressed=suppress, chunk=chunk, entropy=True
    )
    right, right_entropy = _whole(*case, temperature, suppress)
    torch.testing.assert_close(log_probs.double(), right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), right_entropy, atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad((log_probs * weights).sum() + (entropy * weights.flip(0)).sum(), leaves)
    total = (right * weights).sum() + (right_entropy * weights.flip(0)).sum()
    for a, b in zip(found, torch.autograd.grad(total, leaves), strict=True):
        torch.testing.assert_close(a, b.float(), atol=1e-5, rtol=1e-4)


def test_chunks_have_the_bits_of_the_distribution_sampled_from():
    hidden, weight, _, targets = _case(rows=41, width=64, vocabulary=320)
    divisor = torch.full((41, 1), 0.7)
    full = distribution(head_logits(hidden, weight), divisor, torch.tensor([1, 5]))
    for chunk in (4, 12, 64):
        found, _ = token_log_probs(
            hidden, weight, None, targets, temperature=0.7, suppressed=torch.tensor([1, 5]), chunk=chunk
        )
        assert torch.equal(found, full.gather(1, targets[:, None])[:, 0])
    for row in (0, 7, 40):
        alone = distribution(head_logits(hidden[row : row + 1], weight), divisor[:1], torch.tensor([1, 5]))
        assert torch.equal(alone[0], full[row])


def test_a_uniform_distribution_has_the_entropy_of_the_ids_that_are_left():
    log_probs, entropy = token_log_probs(
        torch.zeros(3, 4),
        torch.ones(10, 4),
        None,
        torch.tensor([5, 6, 7]),
        suppressed=torch.tensor([0, 1]),
        entropy=True,
    )
    assert log_probs.tolist() == pytest.approx([-math.log(8)] * 3)
    assert entropy.tolist() == pytest.approx([math.log(8)] * 3)


def test_whole_logits_are_never_kept():
    """The graph holds the hidden rows, and logits of at most one chunk."""
    hidden, weight, _, targets = _case(rows=64, vocabulary=50)
    log_probs, _ = token_log_probs(hidden, weight, None, targets, chunk=8)
    kept = [t for t in log_probs.grad_fn.saved_tensors if t is not None]
    assert all(t.numel() < 64 * 50 for t in kept)
