# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From a rollout to micro-batches: every sample once, groups whole, the same cuts on any number of ranks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.schedule.batch_plan import BatchPlan, StreamedPlan, cut_by_count, cut_by_tokens, plan_groups, split_steps
from relax.utils.errors import ConfigError


def plan_batches(uids, lengths, *, group_size, global_batch_size, dp_size, max_tokens, micro_batch_size=None):
    """The plan of a rollout whose groups come all at once."""
    items = list(zip(uids, lengths, strict=True))
    plan = StreamedPlan(
        groups_per_step=global_batch_size // group_size,
        dp_size=dp_size,
        max_tokens=max_tokens,
        micro_batch_size=micro_batch_size,
    )
    pieces = plan.extend([items[i : i + group_size] for i in range(0, len(items), group_size)], last=True)
    assert [(piece.step, piece.ends_step) for piece in pieces] == [(step, True) for step in range(len(pieces))]
    return BatchPlan(tuple(piece.ranks for piece in pieces))


def flat(plan) -> list:
    return [uid for step in plan.steps for rank in step for micro in rank for uid in micro]


def test_seven_samples_on_two_ranks_are_each_covered_once():  # G7
    plan = plan_batches(
        list("abcdefg"), [1] * 7, group_size=1, global_batch_size=7, dp_size=2, max_tokens=None, micro_batch_size=2
    )
    # micro-batches ab cd ef g, dealt round robin
    assert plan.steps == (((("a", "b"), ("e", "f")), (("c", "d"), ("g",))),)


def test_ranks_are_padded_with_empty_micro_batches():
    plan = plan_batches([1, 2, 3], [4, 4, 4], group_size=1, global_batch_size=3, dp_size=2, max_tokens=4)
    assert plan.steps == ((((1,), (3,)), ((2,), ())),)


def test_a_sample_longer_than_the_limit_has_a_micro_batch_of_its_own():
    assert cut_by_tokens([3, 20, 3, 3], 8) == [(0, 1), (1, 2), (2, 4)]


def test_next_fit_fills_up_to_the_limit_and_not_over():
    # 3 + 5 = 8 fits, + 1 does not; 1 + 7 = 8 fits
    assert cut_by_tokens([3, 5, 1, 7, 1], 8) == [(0, 2), (2, 4), (4, 5)]
    assert cut_by_tokens([], 8) == []


def test_steps_hold_whole_groups_and_the_last_may_be_smaller():
    assert split_steps(20, 4, 8) == [(0, 8), (8, 16), (16, 20)]


def test_groups_that_fanned_out_stay_whole():
    # 2 groups a step; sizes 5, 4, 4, 1 and 6
    assert split_steps(20, 4, 8, group_sizes=[5, 4, 4, 1, 6]) == [(0, 9), (9, 14), (14, 20)]


def test_group_sizes_must_be_those_of_the_samples():
    with pytest.raises(ValueError, match="groups of 3 samples in all, but 4 samples"):
        split_steps(4, 2, 2, group_sizes=[2, 1])


def test_a_batch_that_cuts_groups_is_refused_with_the_flags():
    with pytest.raises(ConfigError, match=r"--global-batch-size 6 .* --n-samples-per-prompt 4; use a multiple of 4"):
        split_steps(8, 4, 6)


@pytest.mark.parametrize("cut", [lambda: cut_by_tokens([1], 0), lambda: cut_by_count(3, 0)])
def test_limits_below_one_are_refused(cut):
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        cut()


ROLLOUTS = st.tuples(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),  # lengths
    st.integers(1, 4),  # ranks
    st.one_of(st.none(), st.integers(1, 40)),  # tokens
    st.integers(1, 5),  # samples of a micro-batch
    st.integers(1, 10),  # groups of a step
)


@given(ROLLOUTS)
def test_every_sample_is_in_one_micro_batch_and_ranks_have_equally_many(rollout):
    lengths, dp_size, max_tokens, micro_batch_size, groups = rollout
    plan = plan_batches(
        range(len(lengths)),
        lengths,
        group_size=1,
        global_batch_size=groups,
        dp_size=dp_size,
        max_tokens=max_tokens,
        micro_batch_size=micro_batch_size,
    )
    assert Counter(flat(plan)) == Counter(range(len(lengths)))
    for step in plan.steps:
        assert len(step) == dp_size
        assert len({len(rank) for rank in step}) == 1
        for micro in (m for rank in step for m in rank if m):
            assert max_tokens is None or len(micro) == 1 or sum(lengths[uid] for uid in micro) <= max_tokens


@given(ROLLOUTS)
def test_what_a_micro_batch_holds_does_not_depend_on_the_number_of_ranks(rollout):
    lengths, dp_size, max_tokens, micro_batch_size, groups = rollout
    options = {
        "group_size": 1,
        "global_batch_size": groups,
        "max_tokens": max_tokens,
        "micro_batch_size": micro_batch_size,
    }
    alone = plan_batches(range(len(lengths)), lengths, dp_size=1, **options)
    split = plan_batches(range(len(lengths)), lengths, dp_size=dp_size, **options)
    for one, many in zip(alone.steps, split.steps, strict=True):
        dealt = [micro for turn in zip(*many, strict=True) for micro in turn if micro]
        assert dealt == list(one[0])


@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), max_size=12), st.integers(1, 4))
def test_a_pass_over_whole_groups_splits_no_group(groups, dp_size):
    samples = [[((g, place), length) for place, length in enumerate(lengths)] for g, lengths in enumerate(groups)]
    plan = plan_groups(samples, dp_size=dp_size, max_tokens=16)
    (step,) = plan.steps
    assert len({len(rank) for rank in step}) == 1
    for rank, micro_batches in enumerate(step):
        mine = [uid for micro in micro_batches for uid in micro]
        assert mine == [uid for group in samples[rank::dp_size] for uid, _ in group]
        for micro in micro_batches:
            assert len(micro) <= 1 or sum(groups[g][place] for g, place in micro) <= 16


# ------------------------------------------------------------------ parts


def test_a_part_hands_out_all_micro_batches_but_the_one_that_the_next_part_may_fill():
    # lengths 3 5 | 1 7 | 1 8, at most 8 tokens: 3 + 5 closes when 1 does not fit, 1 + 7 when the next 1 does not
    plan = StreamedPlan(groups_per_step=3, dp_size=1, max_tokens=8)
    assert plan.extend([[("a", 3), ("b", 5)]], last=False) == []
    (second,) = plan.extend([[("c", 1), ("d", 7)]], last=False)
    assert (second.step, second.ranks, second.ends_step) == (0, ((("a", "b"),),), False)
    (third,) = plan.extend([[("e", 1), ("f", 8)]], last=True)
    assert (third.step, third.ranks, third.ends_step) == (0, ((("c", "d"), ("e",), ("f",)),), True)


def test_ranks_get_equally_many_micro_batches_of_a_part():
    # five closed micro-batches of one sample: two turns of two ranks, the fifth waits for the sixth
    plan = StreamedPlan(groups_per_step=7, dp_size=2, max_tokens=None, micro_batch_size=1)
    (first,) = plan.extend([[(uid, 1)] for uid in "abcdef"], last=False)
    assert first.ranks == ((("a",), ("c",)), (("b",), ("d",)))
    (rest,) = plan.extend([[("g", 1)]], last=True)
    assert rest.ranks == ((("e",), ("g",)), (("f",), ()))


def test_steps_begin_at_their_own_first_micro_batch():
    plan = StreamedPlan(groups_per_step=1, dp_size=1, max_tokens=100)
    pieces = plan.extend([[("a", 1)], [("b", 1)]], last=False)
    assert [(p.step, p.ranks, p.ends_step) for p in pieces] == [(0, ((("a",),),), True), (1, ((("b",),),), True)]
    assert plan.extend([], last=True) == []


@given(ROLLOUTS, st.lists(st.integers(0, 7), max_size=12))
def test_the_pieces_of_a_streamed_rollout_joined_are_the_plan_of_the_whole(rollout, part_sizes):
    lengths, dp_size, max_tokens, micro_batch_size, groups = rollout
    options = {"dp_size": dp_size, "max_tokens": max_tokens, "micro_batch_size": micro_batch_size}
    whole = plan_batches(range(len(lengths)), lengths, group_size=1, global_batch_size=groups, **options)
    plan, pieces, rest = StreamedPlan(groups_per_step=groups, **options), [], [[item] for item in enumerate(lengths)]
    for size in part_sizes:
        pieces += plan.extend(rest[:size], last=False)
        rest = rest[size:]
    pieces += plan.extend(rest, last=True)
    joined = [[()] * dp_size for _ in whole.steps]
    for piece in pieces:
        assert len({len(rank) for rank in piece.ranks}) == 1  # every call is collective
        joined[piece.step] = [a + b for a, b in zip(joined[piece.step], piece.ranks, strict=True)]
    assert tuple(tuple(step) for step in joined) == whole.steps
    assert [p.step for p in pieces if p.ends_step] == list(range(len(whole.steps)))
