# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A label tells its reward only where it is beyond doubt; the fallback answers for the rest, and says so once."""

from __future__ import annotations

import logging

import pytest

from relax.engine.rewards.infer import inferred_name
from relax.engine.rewards.score import RewardScorer
from relax.utils.errors import ConfigError
from relax.utils.types import Sample


@pytest.mark.parametrize("label", ["3", " -3.5 ", "+1,234,567.8", 12, 0.25])
def test_a_number_is_mathematics(label):
    assert inferred_name(label) == "math"


@pytest.mark.parametrize("label", ["<answer>B</answer>", "<answer> (c) </answer>", "<answer>D.</answer>"])
def test_a_tagged_letter_is_a_choice(label):
    assert inferred_name(label) == "multiple_choice"


@pytest.mark.parametrize("label", ["B", "3 apples", "1,23", "<answer>12</answer>", "", None, True, ["3"], "1e5"])
def test_anything_else_tells_nothing(label):
    assert inferred_name(label) is None


def sample(index: int, label: object, **metadata: object) -> Sample:
    return Sample(group_index=0, index=index, label=label, response="\\boxed{3}", metadata=dict(metadata))


async def scored(scorer: RewardScorer, *samples: Sample) -> list[object]:
    try:
        await scorer.score(samples)
    finally:
        await scorer.close()
    return [s.reward for s in samples]


async def test_the_row_wins_over_the_flag_and_the_flag_over_the_label():
    scorer = RewardScorer(rm_type="dummy", rm_type_infer=True)
    assert await scored(scorer, sample(0, "3"), sample(1, "3", rm_type="math")) == [0.0, 1.0]


async def test_the_label_decides_where_nothing_is_named():
    assert await scored(RewardScorer(rm_type_infer=True), sample(0, "3"), sample(1, "4")) == [1.0, 0.0]


async def test_the_fallback_warns_once_for_each_reason_and_value(caplog):
    scorer = RewardScorer(rm_type_infer=True, rm_type_fallback="zero")
    with caplog.at_level(logging.WARNING):
        rewards = await scored(
            scorer,
            sample(0, "three"),
            sample(1, "three"),
            sample(2, "3", rm_type="mathematics"),
            sample(3, "3", rm_type="mathematics"),
            sample(4, "3"),
        )
    assert rewards == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert dict(scorer.fallbacks) == {("label not recognised", "'three'"): 2, ("unknown rm_type", "mathematics"): 2}
    assert len([r for r in caplog.records if "reward fallback" in r.getMessage()]) == 2


async def test_without_a_fallback_an_unknown_label_ends_the_run():
    with pytest.raises(ConfigError, match="whose label 'three' tells none"):
        await scored(RewardScorer(rm_type_infer=True), sample(0, "three"))


async def test_a_built_in_may_be_the_fallback():
    assert await scored(RewardScorer(rm_type_fallback="math"), sample(0, "3"), sample(1, "4")) == [1.0, 0.0]


def test_an_unknown_fallback_is_refused():
    with pytest.raises(ConfigError, match="--rm-type-fallback 'nil' is unknown"):
        RewardScorer(rm_type_fallback="nil")
