# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import math

import torch

from relax.algorithms.importance import masked_weights, off_policy_sequence_mask, truncated_weights

# weights trainer / engine of 0.5 and 3
TRAINER = torch.tensor([math.log(0.5), math.log(3.0)], dtype=torch.float64)
ENGINE = torch.zeros(2, dtype=torch.float64)
MASK = torch.tensor([True, True])


def test_truncated_weights_hold_the_range_and_measure_before_the_clamp_L24():
    result = truncated_weights(TRAINER, ENGINE, MASK, low=0.0, high=2.0)
    torch.testing.assert_close(result.weight_T, torch.tensor([0.5, 2.0], dtype=torch.float64))
    assert result.clipped_T.double().mean().item() == 0.5
    torch.testing.assert_close(result.raw_T, torch.tensor([0.5, 3.0], dtype=torch.float64))


def test_masked_weights_leave_out_what_lies_outside():
    result = masked_weights(TRAINER, ENGINE, MASK, low=0.6, high=4.0)
    torch.testing.assert_close(result.weight_T, torch.tensor([0.0, 3.0], dtype=torch.float64))
    assert result.clipped_T.tolist() == [True, False]


def test_weights_carry_no_gradient_L20():
    trainer, engine = TRAINER.clone().requires_grad_(), ENGINE.clone().requires_grad_()
    for function in (truncated_weights, masked_weights):
        assert not function(trainer, engine, MASK, low=0.0, high=2.0).weight_T.requires_grad


def test_opsm_leaves_out_bad_tokens_of_far_sequences_only():
    # old - new: sequence 0 has mean (0.3 + 0.1) / 2 = 0.2 > 0.15; its masked token (9.0) has no say.
    # sequence 1 has mean 0.1 <= 0.15
    old_minus_new = torch.tensor([0.3, 0.1, 9.0, 0.1, 0.1], dtype=torch.float64)
    keep = torch.tensor([True, True, False, True, True])
    advantage = torch.tensor([-1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    sequence = torch.tensor([0, 0, 0, 1, 1])
    out = off_policy_sequence_mask(
        torch.zeros(5, dtype=torch.float64), old_minus_new, advantage, keep, sequence, 2, delta=0.15
    )
    assert out.tolist() == [0.0, 1.0, 0.0, 1.0, 1.0]
