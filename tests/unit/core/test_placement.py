# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a cluster must offer before a run is placed on it."""

from __future__ import annotations

import pytest

from relax.config.resources import parse_resource
from relax.core.placement import check_one_node, group_sizes
from relax.utils.errors import ConfigError

FOUR = parse_resource({"actor": [1, 2], "rollout": [1, 2]})


def test_a_run_that_fits_only_on_several_nodes_is_refused_and_told_to_need_one_node():
    with pytest.raises(ConfigError, match=r"needs 4 cards; the cluster has 6 of them, this node 3, .* on one node"):
        check_one_node(FOUR, colocate=False, here=3, total=6)


def test_one_node_with_as_many_cards_is_enough():
    check_one_node(FOUR, colocate=False, here=4, total=6)
    check_one_node(FOUR, colocate=True, here=2, total=6)  # actor and rollout share theirs


def test_colocate_shares_the_cards_of_the_larger_role_and_other_modes_give_each_role_its_own():
    five = parse_resource({"actor": [1, 2], "rollout": [1, 3], "reference": [1, 1], "advantages": [1, 0]})
    assert group_sizes(five, colocate=True) == {"shared": 3, "reference": 1}
    assert group_sizes(five, colocate=False) == {"actor": 2, "rollout": 3, "reference": 1}
    assert group_sizes(FOUR, colocate=False) == {"actor": 2, "rollout": 2}  # hybrid
