# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Preference losses against their closed forms in float64."""

import math

import pytest
import torch

from relax.algorithms.supervised.options import SupervisedOptions, build_supervised_loss
from relax.algorithms.supervised.sequences import (
    Answered,
    preference_sequences,
    reward_sequences,
    supervised_reduction,
)
from relax.utils.errors import ConfigError, DataError, InternalError
from tests.unit.algorithms.supervised.cases import token_batch, whole_batch

# chosen: 2 tokens, rejected: 3 tokens, of which the last is not trained
LOGPS = [[-1.0, -2.0], [-0.5, -1.5, -9.0]]
MASKS = [[1, 1], [1, 1, 0]]
REF = [-1.5, -2.5, -0.25, -1.25, -3.0]
PREFERRED = [1, 1, 0, 0, 0]


def dpo(**fields):
    return build_supervised_loss(SupervisedOptions(loss_type="dpo", **fields))


def test_dpo_equals_its_closed_form():
    # chosen: -3 - (-4) = 1; rejected, masked: -2 - (-1.5) = -0.5; margin = 0.1 x 1.5, loss = ln(1 + exp(-0.15))
    batch = token_batch(LOGPS, MASKS, preferred=PREFERRED, ref_logprobs=REF)
    terms = dpo(dpo_beta=0.1)(batch)
    terms["dpo/loss"].total.backward()
    assert terms["dpo/loss"].total.item() == pytest.approx(math.log1p(math.exp(-0.15)), rel=1e-15)
    # d loss / d margin = -sigmoid(-margin); each trained token of the chosen answer has beta x that, of the rejected -
    slope = 0.1 / (1 + math.exp(0.15))
    assert batch.log_probs.grad.tolist() == pytest.approx([-slope, -slope, slope, slope, 0.0], rel=1e-14)
    found = {name.removeprefix("dpo/"): (float(t.total), t.count) for name, t in terms.items()}
    assert found["logps_chosen"] == (-3.0, 1.0)
    assert found["logps_rejected"] == (-2.0, 1.0)
    assert found["ref_logps_chosen"] == (-4.0, 1.0)
    assert found["ref_logps_rejected"] == (-1.5, 1.0)
    assert found["reward_chosen"] == pytest.approx((0.1, 1.0))
    assert found["reward_rejected"] == pytest.approx((-0.05, 1.0))
    assert found["reward_margin"] == pytest.approx((0.15, 1.0))
    assert (found["strict_accuracy"], found["tie_rate"], found["tie_aware_accuracy"]) == ((1, 1), (0, 1), (1, 1))


def test_without_a_reference_the_policy_alone_is_compared():
    # margin = 0.5 x (-3 - (-2)) = -0.5
    batch = token_batch(LOGPS, MASKS, preferred=PREFERRED)
    terms = dpo(dpo_beta=0.5, dpo_reference_free=True)(batch)
    assert terms["dpo/loss"].total.item() == pytest.approx(math.log1p(math.exp(0.5)), rel=1e-15)
    assert not [name for name in terms if "ref_logps" in name]
    assert float(terms["dpo/strict_accuracy"].total) == 0.0


def test_a_policy_equal_to_its_reference_ties_exactly():
    values = [-1.1, -2.3, -0.7, -1.9, -3.3]
    batch = token_batch([values[:2], values[2:]], preferred=PREFERRED, ref_logprobs=values)
    terms = dpo()(batch)
    assert terms["dpo/loss"].total.item() == pytest.approx(math.log(2), rel=1e-15)
    rates = {n: float(terms[f"dpo/{n}"].total) for n in ("strict_accuracy", "tie_rate", "tie_aware_accuracy")}
    assert rates == {"strict_accuracy": 0.0, "tie_rate": 1.0, "tie_aware_accuracy": 0.5}


def test_dpo_of_two_pairs_is_the_sum_of_each_alone():
    other = [[-2.0], [-1.0, -1.0]]
    both = token_batch(
        [*LOGPS, *other], [*MASKS, [1], [1, 1]], preferred=[*PREFERRED, 1, 0, 0], ref_logprobs=[*REF, -1.0, -1.5, -0.5]
    )
    first = token_batch(LOGPS, MASKS, preferred=PREFERRED, ref_logprobs=REF)
    second = token_batch(other, preferred=[1, 0, 0], ref_logprobs=[-1.0, -1.5, -0.5])
    loss = dpo(dpo_beta=0.3)
    together, one, two = loss(both), loss(first), loss(second)
    for name, term in together.items():
        assert float(term.total) == pytest.approx(float(one[name].total) + float(two[name].total), rel=1e-14)
        assert term.count == 2.0


def test_the_dpo_gradient_passes_a_numerical_check():
    loss = dpo(dpo_beta=0.7)

    def total(flat):
        batch = token_batch(LOGPS, MASKS, preferred=PREFERRED, ref_logprobs=REF)
        object.__setattr__(batch, "log_probs", flat)
        return loss(batch)["dpo/loss"].total

    flat = torch.tensor([v for row in LOGPS for v in row], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(total, (flat,))


def test_a_reward_model_trains_by_bradley_terry():
    # scores 2 and 0.5: margin 1.5; scores -1 and 1: margin -2
    batch = whole_batch([[2.0], [0.5], [-1.0], [1.0]], preferred=[1, 0, 1, 0])
    terms = build_supervised_loss(SupervisedOptions(loss_type="reward_model"))(batch)
    terms["reward_model/loss"].total.backward()
    right = math.log1p(math.exp(-1.5)) + math.log1p(math.exp(2.0))
    assert terms["reward_model/loss"].total.item() == pytest.approx(right, rel=1e-15)
    first, second = 1 / (1 + math.exp(1.5)), 1 / (1 + math.exp(-2.0))
    assert batch.class_logits.grad[:, 0].tolist() == pytest.approx([-first, first, -second, second], rel=1e-14)
    assert float(terms["reward_model/strict_accuracy"].total) == 1.0
    assert float(terms["reward_model/score_chosen"].total) == 1.0


def test_rows_that_are_no_pairs_are_an_error():
    with pytest.raises(InternalError, match="a pair was cut"):
        dpo()(token_batch([[-1.0]], preferred=[1], ref_logprobs=[-1.0]))
    with pytest.raises(InternalError, match="not pairs"):
        dpo()(token_batch([[-1.0], [-1.0]], preferred=[0, 1], ref_logprobs=[-1.0, -1.0]))


def test_a_step_of_pairs_is_divided_by_their_number():
    chosen, rejected = preference_sequences(7, Answered([1, 2, 3, 4], [0, 0, 1, 1]), Answered([1, 2, 9], [0, 0, 1]))
    assert (chosen.uid, rejected.uid, chosen.prompt_len) == ((7, 0), (7, 1), 2)
    assert (chosen.columns["preferred"].tolist(), rejected.columns["preferred"].tolist()) == ([1.0, 1.0], [0.0])
    reduction = supervised_reduction([chosen, rejected] * 3, SupervisedOptions(loss_type="dpo"))
    assert (reduction.divisor, reduction.counted, reduction.num_tokens) == (3.0, 3, 9)
    pair = reward_sequences(2, [5, 6], [5])
    assert [s.columns["preferred"].tolist() for s in pair] == [[1.0], [0.0]]
    assert [s.prompt_len for s in pair] == [2, 1]


def test_an_answer_without_a_trained_token_is_refused():
    with pytest.raises(DataError, match="row 4: the rejected answer has no token"):
        preference_sequences(4, Answered([1, 2], [0, 1]), Answered([1, 2], [0, 0]))


def test_a_beta_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"--dpo-beta 0.0 must be > 0"):
        SupervisedOptions(loss_type="dpo", dpo_beta=0.0)
