# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.algorithms.reduce import effective_sample_fraction, masked, step_reduction

LENGTHS = (1, 2, 3, 4, 5, 6)


def masks(lengths):
    return [np.ones(n, np.uint8) for n in lengths]


def reduced(losses, loss_masks, parts, **options):
    """Loss and gradient with respect to a per-sample scale, summed part by part as a backend does."""
    step = step_reduction(loss_masks, dtype=np.float64, **options)
    scale = torch.ones(len(losses), dtype=torch.float64, requires_grad=True)
    total = 0.0
    for part in parts:
        value = sum((torch.as_tensor(step.weights[i] * losses[i], dtype=torch.float64) * scale[i]).sum() for i in part)
        value.backward()
        total += float(value.detach())
    return total / step.divisor, scale.grad / step.divisor


def test_token_mean_of_unequal_micro_batches_weighs_tokens_L1():
    # 100 tokens at 2.0 and 900 at 0.5: (200 + 450) / 1000 = 0.65; the mean of the two means is 1.25.
    losses = [np.full(100, 2.0), np.full(900, 0.5)]
    value, gradient = reduced(losses, masks((100, 900)), [[0], [1]], mode="token_mean")
    assert value == pytest.approx(0.65, abs=1e-12)
    _, whole = reduced(losses, masks((100, 900)), [[0, 1]], mode="token_mean")
    torch.testing.assert_close(gradient, whole, rtol=0, atol=1e-12)


def test_sample_mean_is_the_mean_of_the_means_of_samples():
    # sample means 2.0 and 0.5, so 1.25 whatever the lengths
    value, _ = reduced([np.full(100, 2.0), np.full(900, 0.5)], masks((100, 900)), [[0, 1]])
    assert value == pytest.approx(1.25, abs=1e-12)


def test_token_sum_norm_divides_by_a_constant_length():
    # sums 2 * 3 and 4 * 1, constant length 8, two samples: (6 + 4) / (2 * 8) = 0.625
    losses = [np.full(2, 3.0), np.full(4, 1.0)]
    value, _ = reduced(losses, masks((2, 4)), [[0, 1]], mode="token_sum_norm", max_response_len=8)
    assert value == pytest.approx(0.625, abs=1e-12)


@pytest.mark.parametrize("mode", ["sample_mean", "token_mean", "token_sum_norm"])
def test_every_split_over_ranks_and_micro_batches_gives_one_loss_and_one_gradient_L4_L6(mode):
    rng = np.random.default_rng(0)
    losses = [rng.normal(size=n) for n in LENGTHS]
    options = {"mode": mode, "max_response_len": 7}
    value, gradient = reduced(losses, masks(LENGTHS), [range(6)], **options)
    for cuts in itertools.chain.from_iterable(itertools.combinations(range(1, 6), k) for k in range(6)):
        parts = [range(a, b) for a, b in itertools.pairwise((0, *cuts, 6))]
        other_value, other_gradient = reduced(losses, masks(LENGTHS), parts, **options)
        assert other_value == pytest.approx(value, abs=1e-12)
        torch.testing.assert_close(other_gradient, gradient, rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_order_and_split_of_samples_change_nothing(data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    losses = [rng.normal(size=n) for n in lengths]
    loss_masks = [rng.integers(0, 2, n) for n in lengths]
    order = data.draw(st.permutations(range(len(lengths))))
    mode = data.draw(st.sampled_from(["sample_mean", "token_mean", "token_sum_norm"]))
    options = {"mode": mode, "max_response_len": 10}
    value, gradient = reduced(losses, loss_masks, [range(len(lengths))], **options)
    moved, moved_gradient = reduced(
        [losses[i] for i in order], [loss_masks[i] for i in order], [[i] for i in range(len(order))], **options
    )
    assert moved == pytest.approx(value, abs=1e-12)
    torch.testing.assert_close(moved_gradient, gradient[list(order)], rtol=0, atol=1e-12)


def test_masked_tokens_are_in_no_mean_L8():
    # three tokens at 1 and one masked token at 9: mean 1.0
    value, _ = reduced([np.array([1.0, 1.0, 1.0, 9.0])], [np.array([1, 1, 1, 0])], [[0]], mode="token_mean")
    assert value == 1.0


def test_tool_tokens_are_not_counted_T13():
    # 10 sampled and 90 tool tokens: the mean is over 10
    mask = np.array([1] * 10 + [0] * 90)
    step = step_reduction([mask])
    assert step.weights[0][:10].tolist() == [np.float32(0.1)] * 10
    assert step.weights[0][10:].sum() == 0
    assert step_reduction([mask], mode="token_mean").divisor == 10


def test_last_shorter_window_is_divided_by_its_own_count_L9():
    # 10 samples of one token in windows of 4, 4, 2: the last step is a mean of 2
    windows = [step_reduction(masks([1] * n)) for n in (4, 4, 2)]
    assert [w.divisor for w in windows] == [4, 4, 2]


def test_accumulation_split_leaves_three_sgd_steps_equal_L10():
    # a linear model on 8 samples of unequal length; 8x1, 4x2 and 1x8 give the same parameters
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 6, 8)
    rows = [torch.as_tensor(rng.normal(size=(n, 3))) for n in lengths]
    step = step_reduction(masks(lengths), dtype=np.float64)

    def train(per_micro_batch):
        weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
        for _ in range(3):
            weight.grad = None
            for start in range(0, 8, per_micro_batch):
                part = range(start, start + per_micro_batch)
                sum(((rows[i] @ weight).square() * torch.as_tensor(step.weights[i])).sum() for i in part).backward()
            with torch.no_grad():
                weight -= 0.01 * weight.grad / step.divisor
        return weight.detach()

    for per_micro_batch in (1, 2):
        torch.testing.assert_close(train(per_micro_batch), train(8), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["sample_mean", "token_mean", "token_sum_norm"])
def test_padding_and_fully_masked_samples_do_not_dilute_the_mean_L11(mode):
    loss_masks = [np.ones(3), np.ones(2), np.ones(4), np.zeros(5)]
    losses = [np.full(len(m), 2.0) for m in loss_masks]
    options = {"mode": mode, "max_response_len": 5}
    with_padding, _ = reduced(losses, loss_masks, [range(4)], **options)
    without, _ = reduced(losses[:3], loss_masks[:3], [range(3)], **options)
    assert with_padding == pytest.approx(without, abs=1e-12)


@pytest.mark.parametrize("mode", ["sample_mean", "token_mean", "token_sum_norm"])
def test_a_step_without_any_loss_token_is_zero_and_says_so_L12(mode):
    step = step_reduction([np.zeros(3), np.zeros(0)], mode=mode, max_response_len=5)
    assert step.divisor == 1.0 and step.num_samples == 0 and step.num_tokens == 0
    assert all(not w.any() for w in step.weights)


def test_removed_sample_is_not_counted_and_silent_sample_is():
    loss_masks = masks((2, 2, 2, 2))
    step = step_reduction(loss_masks, keep=[True, False, True, True], silent=[False, False, True, False])
    assert step.divisor == 3 and step.num_tokens == 6
    assert [float(w.sum()) for w in step.weights] == [1.0, 0.0, 0.0, 1.0]


def test_fan_out_weighs_each_sample_of_the_step_once_G5():
    # three rollouts of 1, 3 and 5 samples: 9 samples, each weighs 1/9 of the step
    step = step_reduction(masks([4] * 9))
    assert step.divisor == 9
    assert [float(w.sum()) / step.divisor for w in step.weights] == pytest.approx([1 / 9] * 9)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_what_stands_under_the_mask_never_reaches_the_sum(fill):
    value = torch.tensor([1.0, fill, 2.0], dtype=torch.float64)
    assert masked(value, torch.tensor([True, False, True])).tolist() == [1.0, 0.0, 2.0]


def test_effective_sample_fraction_of_equal_weights_is_one_and_of_one_weight_is_its_share():
    assert effective_sample_fraction(2.0, 4.0) == 1.0
    # weights [1, 0, 0, 0]: mean 1/4, mean square 1/4, (1/16) / (1/4) = 1/4
    assert effective_sample_fraction(0.25, 0.25) == 0.25


def test_unknown_mode_lists_the_known_ones():
    with pytest.raises(ValueError, match="sample_mean, token_mean, token_sum_norm"):
        step_reduction([], mode="mean")


def test_the_effective_fraction_of_small_and_of_no_weights():
    assert effective_sample_fraction(0.5, 0.5) == 0.5
    assert effective_sample_fraction(2.0, 4.0) == 1.0
    assert effective_sample_fraction(0.0, 0.0) == 0.0
