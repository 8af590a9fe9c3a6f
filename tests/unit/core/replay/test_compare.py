# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Recorded beside recomputed: what is called equal, and which difference comes first."""

from __future__ import annotations

import copy

import pytest

from relax.core.replay.compare import StepOutcome, compare_columns, compare_updates, compare_weights
from relax.schedule import events as ev

UPDATE = {
    "divisor": 4.0,
    "sums": {"policy_loss": -0.5, "kl_loss": 0.25},
    "counts": {"policy_loss": 4.0, "kl_loss": 4.0},
    "grad_norm": 1.5,
    "lr": 1e-3,
    "gradient": {"a": 3.0, "b": 4.0},
}
RECORDED = ev.Trained(
    7, ("3.0", "3.1"), {"advantages": "0000000a0000000b", "ref_logprobs": "0000000c--------"}, (UPDATE, UPDATE)
)
CHECKSUMS = {
    "advantages": {(3, 0): "0000000a", (3, 1): "0000000b"},
    "ref_logprobs": {(3, 0): "0000000c"},
}


def updates(inexact: str = "", ranks: int = 1, **changed: object) -> list:
    """The second optimizer step has `changed` numbers."""
    steps = [copy.deepcopy(UPDATE), {**copy.deepcopy(UPDATE), **changed}]
    return compare_updates(RECORDED, (4.0, 4.0), steps, inexact=inexact, ranks=ranks)


def test_equal_records_have_no_difference_and_say_how_much_was_compared():
    columns = compare_columns(RECORDED, CHECKSUMS, inexact="")
    assert [(check.name, check.compared, check.differences) for check in columns] == [
        ("advantages", 2, []),
        ("ref_logprobs", 2, []),
    ]
    loss, gradient = updates()
    # divisor, 2 sums, 2 counts; 2 tensors, the norm, the rate; for 2 optimizer steps
    assert (loss.compared, gradient.compared) == (10, 8)
    assert not loss.differences + gradient.differences


def test_a_column_that_is_gone_or_new_in_a_sample_differs():
    found = {**CHECKSUMS, "ref_logprobs": {(3, 1): "0000000c"}}
    differences = [d for check in compare_columns(RECORDED, found, inexact="") for d in check.differences]
    assert [(d.field, d.where, d.recorded, d.recomputed) for d in differences] == [
        ("ref_logprobs", "sample g3.0", "crc32 0000000c", "crc32 --------"),
        ("ref_logprobs", "sample g3.1", "crc32 --------", "crc32 0000000c"),
    ]


def test_one_unit_in_the_last_place_is_a_difference_where_bits_are_promised_and_none_where_not():
    near = {"policy_loss": -0.5000000000000001, "kl_loss": 0.25}
    (difference,) = updates(sums=near)[0].differences
    assert (difference.field, difference.where) == ("sums/policy_loss", "optimizer step 1")
    assert (difference.recorded, difference.recomputed) == ("-0.5", "-0.5000000000000001")
    assert not updates("another machine", sums=near)[0].differences
    # a relative 1e-3 of 0.25 is 0.00025
    assert not updates("another machine", sums={"policy_loss": -0.5, "kl_loss": 0.2502})[0].differences
    assert updates("another machine", sums={"policy_loss": -0.5, "kl_loss": 0.2503})[0].differences


def test_without_promised_bits_advantages_are_compared_and_log_probs_are_not():
    advantages, ref = compare_columns(RECORDED, CHECKSUMS, inexact="another machine")
    assert (advantages.compared, advantages.skipped) == (2, "")
    assert (ref.compared, ref.skipped) == (0, "another machine")
    assert compare_weights(7, 8, {"a": "x"}, {"a": "y"}, inexact="another machine").skipped == "another machine"


def test_a_count_is_never_close_enough():
    changed = updates("another machine", counts={"policy_loss": 4.0, "kl_loss": 4.001})
    assert [d.field for d in changed[0].differences] == ["counts/kl_loss"]


def test_pieces_of_several_ranks_are_not_compared_but_the_norm_over_all_is():
    loss, gradient = updates("2 training processes", ranks=2, gradient={"a": 99.0}, grad_norm=3.0)
    assert [d.field for d in gradient.differences] == ["grad_norm"]
    assert "each of 2 ranks" in gradient.skipped
    assert not loss.differences


def test_the_first_difference_is_the_earliest_in_time_not_in_the_table():
    first, second = copy.deepcopy(UPDATE), copy.deepcopy(UPDATE)
    first["gradient"]["b"] = 5.0  # of optimizer step 0
    second["sums"]["kl_loss"] = 1.0  # of optimizer step 1, though losses stand before gradients in the table
    checks = compare_updates(RECORDED, (4.0, 4.0), (first, second), inexact="", ranks=1)
    weights = compare_weights(7, 8, {"a": "x"}, {"a": "y"}, inexact="")
    outcome = StepOutcome(7, [weights, *checks])
    assert outcome.first is not None
    assert (outcome.first.field, outcome.first.where) == ("gradient/b", "optimizer step 0")
    # weights that the step starts from come before everything
    start = compare_weights(7, 7, {"a": "x"}, {"a": "y"}, inexact="")
    assert StepOutcome(7, [start, *checks]).first.field == "weights/a"


@pytest.mark.parametrize("steps", [1, 3])
def test_another_number_of_optimizer_steps_is_a_difference(steps):
    loss, _ = compare_updates(RECORDED, (4.0,) * steps, [UPDATE] * steps, inexact="", ranks=1)
    assert (loss.differences[0].recorded, loss.differences[0].recomputed) == ("2", str(steps))


def test_a_number_that_is_none_in_the_journal_equals_itself():
    # the journal keeps it as text, because JSON has no infinity
    recorded = ev.Trained(7, (), {}, ({**UPDATE, "sums": {"ratio": "inf"}, "counts": {"ratio": 1.0}},))
    found = {**UPDATE, "sums": {"ratio": float("inf")}, "counts": {"ratio": 1.0}}
    assert not compare_updates(recorded, (4.0,), [found], inexact="", ranks=1)[0].differences
