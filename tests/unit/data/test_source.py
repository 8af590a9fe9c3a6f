# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.data.datasets import open_dataset
from relax.data.source import PromptSource, num_rollouts
from relax.utils.errors import ConfigError
from relax.utils.rng import permutation
from tests.builders import write_jsonl


@pytest.fixture
def dataset(tmp_path):
    return open_dataset(str(write_jsonl(tmp_path / "a.jsonl", [{"x": i} for i in range(10)])))


def identities(prompts) -> list[tuple[int, int]]:
    return [(prompt.epoch, prompt.row) for prompt in prompts]


def test_the_order_is_the_data_sets_without_shuffle(dataset):
    source = PromptSource(dataset, seed=1, shuffle=False)
    assert identities(source.next(12)) == [(0, i) for i in range(10)] + [(1, 0), (1, 1)]
    assert source.position() == {"epoch": 1, "offset": 2, "digest": dataset.digest}


def test_each_epochs_order_can_be_recomputed_from_seed_and_epoch(dataset):
    drawn = PromptSource(dataset, seed=7, shuffle=True).next(30)
    assert identities(drawn) == [(epoch, int(row)) for epoch in range(3) for row in permutation(7, epoch, 10)]
    assert [prompt.values["x"] for prompt in drawn] == [prompt.row for prompt in drawn]
    assert [prompt.row for prompt in drawn[:10]] != [prompt.row for prompt in drawn[10:20]]


@given(st.lists(st.integers(0, 13), max_size=8), st.integers(0, 7), st.booleans(), st.booleans())
@settings(max_examples=50)
def test_resume_at_any_place_goes_on_exactly(tmp_path_factory, batches, cut, shuffle, streaming):
    folder = tmp_path_factory.mktemp("resume")
    path = str(write_jsonl(folder / "a.jsonl", [{"x": i} for i in range(10)]))
    whole = PromptSource(open_dataset(path), seed=3, shuffle=shuffle)
    expected = [identities(whole.next(count)) for count in batches]

    first = PromptSource(open_dataset(path), seed=3, shuffle=shuffle)
    got = [identities(first.next(count)) for count in batches[:cut]]
    stored = json.loads(json.dumps(first.position()))
    resumed = PromptSource(open_dataset(path, streaming=streaming), seed=3, shuffle=shuffle)
    resumed.restore(stored)
    got += [identities(resumed.next(count)) for count in batches[cut:]]
    assert got == expected
    assert resumed.position() == whole.position()


def test_every_row_is_drawn_once_an_epoch(dataset):
    drawn = PromptSource(dataset, seed=0, shuffle=True).next(30)
    assert set(Counter(identities(drawn)).values()) == {1}


def test_a_changed_data_set_refuses_the_position(dataset, tmp_path):
    other = open_dataset(str(write_jsonl(tmp_path / "b.jsonl", [{"x": -i} for i in range(10)])))
    position = PromptSource(dataset, seed=0, shuffle=True).position()
    with pytest.raises(ConfigError, match="digest"):
        PromptSource(other, seed=0, shuffle=True).restore(position)


def test_a_start_at_the_end_of_an_epoch_is_the_next_epoch(dataset):
    source = PromptSource(dataset, seed=0, shuffle=False, start=(4, 10))
    assert source.position()["epoch"] == 5 and source.position()["offset"] == 0


@pytest.mark.parametrize("start", [(0, 11), (0, -1), (-1, 0)])
def test_a_position_outside_the_data_set_is_refused(dataset, start):
    with pytest.raises(ConfigError, match="does not fit"):
        PromptSource(dataset, seed=0, shuffle=False, start=start)


def test_a_known_prompt_is_found_again_without_moving(dataset):
    source = PromptSource(dataset, seed=5, shuffle=True)
    third = source.next(3)[2]
    position = source.position()
    again = source.at(third.epoch, third.row)
    assert (again.values, again.where) == (third.values, third.where)
    assert source.position() == position


def test_num_epoch_gives_whole_rollouts_only(dataset):
    # 3 epochs x 10 rows = 30 prompts = 7 rollouts of 4, and 2 prompts are left over
    assert PromptSource(dataset, seed=0, shuffle=True).num_rollouts(3, 4) == 7
    with pytest.raises(ConfigError, match="--num-epoch 1 of 10 rows"):
        num_rollouts(10, num_epoch=1, rollout_batch_size=11)
