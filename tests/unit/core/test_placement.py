# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a cluster must offer before a run is placed on it."""

from __future__ import annotations

import pytest

from relax.config.resources import parse_resource
from relax.core.placement import check_engines, group_sizes, spreads
from relax.utils.errors import ConfigError

FOUR = parse_resource({"actor": [1, 2], "rollout": [1, 2]})


def placed(*, here: float, transport: str = "gloo", colocate: bool = False) -> bool:
    return spreads(FOUR, colocate=colocate, here=here, transport=transport)


def test_a_run_that_fits_its_node_stays_there_and_a_larger_one_is_spread():
    assert not placed(here=4)
    assert not placed(here=4, transport="shm")
    assert not placed(here=2, colocate=True)  # actor and rollout share theirs
    assert placed(here=3)
    assert placed(here=1, colocate=True)


def test_what_needs_the_memory_of_one_node_is_refused_on_several():
    with pytest.raises(ConfigError, match=r"needs 4 cards, this node has 3, .* add --checkpoint-engine-backend gloo"):
        placed(here=3, transport="shm")


def test_an_engine_is_on_one_node():
    check_engines(["a", "a", "b", "b"], 2)
    check_engines(["a", "b", "c"], 1)
    check_engines([], 8)
    with pytest.raises(ConfigError, match=r"--rollout-num-gpus-per-engine 2 does not divide .* \(3, 1\)"):
        check_engines(["a", "a", "a", "b"], 2)


def test_colocate_shares_the_cards_of_the_larger_role_and_other_modes_give_each_role_its_own():
    five = parse_resource({"actor": [1, 2], "rollout": [1, 3], "reference": [1, 1], "advantages": [1, 0]})
    assert group_sizes(five, colocate=True) == {"shared": 3, "reference": 1}
    assert group_sizes(five, colocate=False) == {"actor": 2, "rollout": 3, "reference": 1}
    assert group_sizes(FOUR, colocate=False) == {"actor": 2, "rollout": 2}  # hybrid
