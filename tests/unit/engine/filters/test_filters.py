# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import math
from types import SimpleNamespace

import numpy as np
import pytest

from relax.engine.filters.dynamic import DynamicFilterOutput, check_reward_nonzero_std, load_dynamic_filter
from relax.engine.filters.samples import load_sample_filter
from relax.utils.errors import ConfigError, UserCodeError
from relax.utils.imports import load_object
from relax.utils.types import Sample

ARGS = SimpleNamespace(reward_key=None)


def group(rewards, **fields):
    return [Sample(group_index=2, index=i, reward=r, **fields) for i, r in enumerate(rewards)]


@pytest.mark.parametrize(
    ("rewards", "output"),
    [
        ([1.0, 0.0], DynamicFilterOutput(True)),
        ([1.0, 1.0, 1.0], DynamicFilterOutput(False, "zero_std_1.0")),
        ([0.1] * 7, DynamicFilterOutput(False, "zero_std_0.1")),
        ([0.0], DynamicFilterOutput(False, "zero_std_0.0")),
        # equal in float32, not in float64
        ([1.0, 1.0 + 1e-12], DynamicFilterOutput(True)),
        ([1.0, math.nan, 1.0], DynamicFilterOutput(False, "zero_std_1.0")),
        ([math.nan, math.nan], DynamicFilterOutput(False, "no_reward")),
    ],
)
def test_nonzero_std_keeps_groups_whose_rewards_differ(rewards, output):
    assert check_reward_nonzero_std(ARGS, group(rewards)) == output


def test_raw_and_shaped_reward_are_told_apart_by_name_L30():
    samples = group([{"raw": 1.0, "shaped": 1.0}, {"raw": 1.0, "shaped": 0.9}])
    raw = check_reward_nonzero_std(SimpleNamespace(reward_key="raw"), samples)
    shaped = check_reward_nonzero_std(SimpleNamespace(reward_key="raw", dynamic_filter_reward_key="shaped"), samples)
    assert (raw.keep, shaped.keep) == (False, True)
    parts = [Sample(reward=1.0, reward_parts={"acc": acc}) for acc in (0.0, 1.0)]
    assert check_reward_nonzero_std(SimpleNamespace(dynamic_filter_reward_key="acc"), parts).keep


def test_the_documented_path_loads():
    keep = load_dynamic_filter("relax.engine.filters.dynamic.check_reward_nonzero_std")
    assert keep(ARGS, group([0.0, 1.0])).keep
    assert load_object("relax.engine.filters.dynamic.DynamicFilterOutput", flag="x") is DynamicFilterOutput


def says_bool(args, samples):
    return np.bool_(samples[0].reward > 0)


def says_text(args, samples):
    return "keep"


def divides(args, samples):
    return 1 / 0


def wants_more(args, samples, evaluation):
    return True


def removes_long(args, groups):
    for samples in groups:
        for sample in samples:
            sample.remove_sample = sample.response_length > 3


def pops(args, groups):
    groups[0].pop()


def test_a_filter_may_answer_with_a_bool_and_nothing_else():
    keep = load_dynamic_filter(f"{__name__}.says_bool")
    assert keep(ARGS, group([1.0])) == DynamicFilterOutput(True)
    assert keep(ARGS, group([0.0])) == DynamicFilterOutput(False, "filter")
    with pytest.raises(UserCodeError, match="returned str"):
        load_dynamic_filter(f"{__name__}.says_text")(ARGS, group([1.0]))


def test_a_broken_filter_is_named_and_keeps_its_traceback():
    with pytest.raises(UserCodeError, match=r"divides \(sample 2\): ZeroDivisionError") as caught:
        load_dynamic_filter(f"{__name__}.divides")(ARGS, group([1.0]))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ConfigError, match="--dynamic-sampling-filter-path"):
        load_dynamic_filter(f"{__name__}.wants_more")


def test_a_sample_filter_marks_and_may_not_change_the_list():
    groups = [[Sample(index=0, response_length=5), Sample(index=1, response_length=2)]]
    load_sample_filter(f"{__name__}.removes_long")(ARGS, groups)
    assert [s.remove_sample for s in groups[0]] == [True, False]
    with pytest.raises(UserCodeError, match=r"may only set sample\.remove_sample"):
        load_sample_filter(f"{__name__}.pops")(ARGS, groups)
