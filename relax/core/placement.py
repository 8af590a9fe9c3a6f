# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which card each rank and engine sits on: one bundle a card, bundles sorted by node.

Colocate has one placement group, sized by the larger of actor and rollout; rank i takes half of bundle i, an engine a
quarter of its bundles. Otherwise every role with cards has a group of its own. Without GPUs the custom resource
`slot` stands for a card, in the same code. All bundles are on the driver's node: router and engines listen on
loopback, and weight versions travel through that node's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.config.resources import SHARED, RoleResource
from relax.distributed.ray.cluster import SLOT
from relax.utils.errors import ConfigError, InfrastructureError

READY_TIMEOUT_S = 120.0
ACTOR_SHARE, ENGINE_SHARE = 0.5, 0.25


@dataclass(frozen=True)
class Seat:
    """Ray options that put one worker onto its card."""

    options: Mapping[str, Any]


class Placement:
    """Placement groups of one run. `remove` gives the cards back."""

    def __init__(self, resource: Mapping[str, RoleResource], *, colocate: bool, gpus: bool, node: str) -> None:
        self._colocate, self._gpus, self._node = colocate, gpus, node
        self._sizes = group_sizes(resource, colocate=colocate)
        self._groups: dict[str, Any] = {}
        self._order: dict[str, list[int]] = {}

    async def create(self) -> None:
        """Reserve every group, or raise naming what could not be placed in time."""
        try:
            await self._reserve(list(self._sizes))
        except InfrastructureError:
            self.remove()
            raise

    async def _reserve(self, names: Sequence[str]) -> None:
        from ray.util.placement_group import placement_group

        card = {"GPU" if self._gpus else SLOT: 1.0, **on_node(self._node)}
        for name in names:
            self._groups[name] = placement_group([card] * self._sizes[name])
        for name in names:
            group = self._groups[name]
            try:
                async with asyncio.timeout(READY_TIMEOUT_S):
                    await group.ready()
            except TimeoutError:
                raise InfrastructureError(
                    f"no place for {self._sizes[name]} cards of {name} within {READY_TIMEOUT_S:g} s: other jobs hold "
                    "them (see `ray status`)"
                ) from None
            self._order[name] = _sorted_bundles(group)

    def seat(self, role: str, place: int) -> Seat:
        """The card of rank or engine `place` of a role."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        name = self._group_of(role)
        share = (ACTOR_SHARE if role == "actor" else ENGINE_SHARE) if self._colocate and role in SHARED else 1.0
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._groups[name], placement_group_bundle_index=self._order[name][place]
        )
        cards: dict[str, Any] = {"num_gpus": share} if self._gpus else {"resources": {SLOT: share}}
        return Seat({"num_cpus": 0, "scheduling_strategy": strategy, **cards})

    async def add(self, name: str, cards: int) -> Seat:
        """A seat on `cards` cards of a new group `name`; `give_back` frees them. Raises when none are free in time."""
        self._sizes[name] = cards
        await self._reserve([name])
        return self.seat(name, 0)

    def give_back(self, name: str) -> None:
        """Free the cards of an added group. Unknown names are a no-op."""
        from ray.util.placement_group import remove_placement_group

        group = self._groups.pop(name, None)
        if group is not None:
            remove_placement_group(group)

    def remove(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for group in self._groups.values():
            remove_placement_group(group)
        self._groups = {}

    def _group_of(self, role: str) -> str:
        return "shared" if self._colocate and role in SHARED else role


def on_node(node: str) -> dict[str, float]:
    """Ray resources that keep a bundle or a worker on `node`; next to nothing, so that any number fits."""
    return {node: 0.001}


def check_one_node(resource: Mapping[str, RoleResource], *, colocate: bool, here: float, total: float) -> None:
    """Raise where the cluster could hold the run only on several nodes. `here` and `total` are cards."""
    needed = sum(group_sizes(resource, colocate=colocate).values())
    if here < needed <= total:
        raise ConfigError(
            f"--resource needs {needed} cards; the cluster has {total:g} of them, this node {here:g}, and all "
            "processes of a run must be on one node: give roles fewer cards, or start on a node that has as many"
        )


def check_slots(resource: Mapping[str, RoleResource], *, colocate: bool, total: float, free: float) -> None:
    """Raise where a cluster without GPUs can never, or not now, give a slot to every rank and engine."""
    needed = sum(group_sizes(resource, colocate=colocate).values())
    if total < needed:
        raise InfrastructureError(
            f"--resource needs {needed} cards; this Ray cluster has no GPUs and {total:g} of the resource "
            f"{SLOT!r} that stands for them: start it with `ray start --head --resources='{{\"{SLOT}\": {needed}}}'`"
        )
    if free < needed:
        raise InfrastructureError(
            f"--resource needs {needed} of the cluster's resource {SLOT!r}, and {free:g} of {total:g} are free: other "
            "jobs hold them (see `ray status`)"
        )


def group_sizes(resource: Mapping[str, RoleResource], *, colocate: bool) -> dict[str, int]:
    """{placement group: cards}."""
    sizes = {role: entry.gpus for role, entry in resource.items() if entry.gpus > 0}
    if not colocate:
        return sizes
    shared = max((sizes.pop(role) for role in SHARED if role in sizes), default=0)
    return {"shared": shared, **sizes}


def _sorted_bundles(group: Any) -> list[int]:
    """Bundle indices, those of one node together, in the order of the nodes' ids."""
    from ray.util.placement_group import placement_group_table

    nodes = placement_group_table(group)["bundles_to_node_id"]
    return sorted(nodes, key=lambda index: (nodes[index], index))
