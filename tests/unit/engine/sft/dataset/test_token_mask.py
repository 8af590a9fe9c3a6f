# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import numpy as np
import pytest

from relax.engine.sft.dataset.token_mask import mask_of_offsets, masked_tokens
from relax.utils.errors import ConfigError


def mask(offsets, spans):
    return mask_of_offsets(np.asarray(offsets, np.int64).reshape(-1, 2), spans).tolist()


def test_only_tokens_inside_a_span_are_trained():
    assert mask([(0, 2), (2, 4), (4, 6), (6, 8)], [(2, 6)]) == [0, 1, 1, 0]
    assert mask([(0, 2), (2, 4), (4, 6), (6, 8)], [(0, 2), (6, 8)]) == [1, 0, 0, 1]


def test_tokens_across_a_border_are_not_trained():
    assert mask([(0, 3), (3, 5), (5, 8)], [(2, 6)]) == [0, 1, 0]


def test_tokens_of_one_character_are_trained_together():
    # A byte-level tokenizer gives each byte of an emoji the whole character.
    assert mask([(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], [(1, 2)]) == [0, 1, 1, 1, 0]


def test_white_space_that_a_tokenizer_trims_belongs_to_the_token_behind_it():
    # Text "a bc": trimmed offsets leave the blank out, so the second token covers characters 1 to 4.
    assert mask([(0, 1), (2, 4)], [(1, 4)]) == [0, 1]
    assert mask([(0, 1), (2, 4)], [(2, 4)]) == [0, 0]
    # A token that is white space alone is trimmed to nothing: it covers what nobody else does.
    assert mask([(0, 1), (2, 2), (2, 4)], [(2, 4)]) == [0, 0, 1]


def test_tokens_that_a_tokenizer_adds_are_not_trained():
    assert mask([(0, 0), (0, 2), (2, 4), (0, 0)], [(0, 4)]) == [0, 1, 1, 0]


def test_no_tokens_no_spans():
    assert mask([], [(0, 1)]) == []
    assert mask([(0, 1)], []) == [0]


def test_a_tokenizer_without_offsets_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(ConfigError, match="--hf-checkpoint: the tokenizer Slow tells no character offsets"):
        masked_tokens(Slow(), "a", [])
