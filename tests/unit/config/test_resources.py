# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""--resource: its form, the cards it needs, and what is said when they do not fit."""

from __future__ import annotations

import pytest

from relax.config.resources import (
    ClusterArgs,
    RoleResource,
    _derive_cluster_args_from_resource,
    check_fits,
    default_resource,
    needed_gpus,
    parse_resource,
    resource_table,
    split_over_nodes,
)
from relax.config.run import default_config
from relax.utils.errors import ConfigError

EIGHT = {"actor": [1, 8], "rollout": [1, 8]}


def test_a_pair_is_replicas_and_cards() -> None:
    assert parse_resource({"actor": (1, 8)}) == {"actor": RoleResource(1, 8)}


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        ({}, "--resource is empty"),
        ({"actr": [1, 1]}, "unknown role 'actr': did you mean 'actor'?"),
        ({"actor": 8}, "'actor' must be [replicas, cards in all], two whole numbers, got 8"),
        ({"actor": [1]}, "two whole numbers, got [1]"),
        ({"actor": [1, 2.5]}, "two whole numbers, got [1, 2.5]"),
        ({"actor": [2, 8]}, "asks for 2 replicas; replicas must be 1"),
        ({"actor": [1, 0]}, "'actor' must hold at least 1 cards, got 0"),
        ({"critic": [1, 0]}, "'critic' must hold at least 1 cards, got 0"),
    ],
)
def test_a_wrong_resource_is_an_error_that_names_the_role(resource: dict, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_resource(resource)
    assert text in str(caught.value)


def test_colocated_roles_need_the_larger_of_them_plus_the_others() -> None:
    resource = parse_resource({"actor": [1, 8], "rollout": [1, 6], "reference": [1, 2], "advantages": [1, 0]})
    assert needed_gpus(resource, colocate=True) == 8 + 2
    assert needed_gpus(resource, colocate=False) == 8 + 6 + 2


def test_too_few_cards_show_the_table_and_the_remedies() -> None:
    resource = parse_resource(EIGHT)
    with pytest.raises(ConfigError) as caught:
        check_fits(resource, colocate=False, available=8)
    text = str(caught.value)
    assert "needs 16 GPUs and the cluster has 8" in text
    assert "actor          8 cards" in text
    assert "add nodes" in text
    assert "--colocate --max-staleness 0" in text
    check_fits(resource, colocate=True, available=8)


def test_the_table_says_which_roles_share() -> None:
    lines = resource_table(parse_resource({"actor": [1, 1], "rollout": [1, 1]}), colocate=True).splitlines()
    assert lines[0].split() == ["actor", "1", "card", "(shared)"]
    assert lines[-1].split()[:2] == ["needed", "1"]


@pytest.mark.parametrize(
    ("gpus", "per_node", "expected"), [(2, 8, (1, 2)), (8, 8, (1, 8)), (16, 8, (2, 8)), (6, 2, (3, 2))]
)
def test_a_large_role_takes_whole_nodes(gpus: int, per_node: int, expected: tuple[int, int]) -> None:
    assert split_over_nodes(gpus, per_node) == expected


def test_a_role_that_fills_no_whole_nodes_is_an_error() -> None:
    with pytest.raises(ConfigError, match="12 cards, which fill no whole number of nodes of 8"):
        split_over_nodes(12, 8)


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        (0, {}, {"actor": [1, 1], "rollout": [1, 1]}),
        (8, {}, {"actor": [1, 4], "rollout": [1, 4]}),
        (8, {"colocate": True}, {"actor": [1, 8], "rollout": [1, 8]}),
        (0, {"colocate": True}, {"actor": [1, 1], "rollout": [1, 1]}),
        (
            8,
            {"fully_async": True, "reference": True},
            {"actor": [1, 4], "rollout": [1, 3], "advantages": [1, 0], "reference": [1, 1]},
        ),
        (
            0,
            {"fully_async": True, "reference": True, "actor_fwd": True},
            {"actor": [1, 1], "rollout": [1, 1], "advantages": [1, 0], "reference": [1, 1], "actor_fwd": [1, 1]},
        ),
    ],
)
def test_cards_are_shared_out_when_no_resource_is_given(gpus: int, options: dict, expected: dict) -> None:
    settings = {"colocate": False, "reference": False, "actor_fwd": False, "fully_async": False, "rollout_gpus": None}
    assert default_resource(gpus, **(settings | options)) == expected


def test_cluster_numbers_follow_from_the_resource() -> None:
    config = default_config(
        resource={"actor": [1, 16], "rollout": [1, 8]},
        rollout_num_gpus_per_engine=2,
        fully_async=True,
        max_staleness=1,
    )
    assert _derive_cluster_args_from_resource(config) == ClusterArgs(
        actor_num_nodes=2, actor_num_gpus_per_node=8, rollout_num_gpus=8, num_engines=4, needed_gpus=24
    )
    assert (config.cluster.actor_num_nodes, config.cluster.rollout_num_gpus) == (2, 8)
