# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which card each rank and engine sits on: one bundle a card, bundles sorted by node.

Colocate has one placement group, sized by the largest of the roles that take turns; of bundle i, actor rank i takes
a half, critic rank i a quarter, and an engine a quarter of its bundles. Otherwise every role with cards has a group of
its own. Without GPUs the custom resource `slot` stands for a card, in the same code.

A run that fits the driver's node stays there: router and engines listen on loopback, and weight versions go through
that node's memory. A larger one is spread over nodes, whose network its router and engines then listen on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.config.resources import SHARED, RoleResource
from relax.distributed.ray.cluster import SLOT
from relax.utils.errors import ConfigError, InfrastructureError, RelaxError

READY_TIMEOUT_S = 120.0
SHARES = {"actor": 0.5, "critic": 0.25, "rollout": 0.25}  # of a card, where roles take turns


@dataclass(frozen=True)
class Seat:
    """Ray options that put one worker onto its card."""

    options: Mapping[str, Any]


class Placement:
    """Placement groups of one run. `remove` gives the cards back."""

    def __init__(
        self,
        resource: Mapping[str, RoleResource],
        *,
        colocate: bool,
        card: str | None,
        node: str | None,
        cards_per_engine: int = 1,
    ) -> None:
        """`card` is the resource that is counted as cards; None: a card is no more than a process on `node`. `node` is
        the resource of the one node that all bundles go to, None to let them go to any."""
        self._colocate, self._card, self._node = colocate, card, node
        self._engine_cards = resource["rollout"].gpus if "rollout" in resource else 0
        self._cards_per_engine = cards_per_engine
        self._sizes = group_sizes(resource, colocate=colocate)
        self._groups: dict[str, Any] = {}
        self._order: dict[str, list[int]] = {}

    async def create(self) -> None:
        """Reserve every group, or raise naming what could not be placed in time."""
        try:
            await self._reserve(list(self._sizes))
        except RelaxError:
            self.remove()
            raise

    async def _reserve(self, names: Sequence[str], strategy: str = "PACK") -> None:
        from ray.util.placement_group import placement_group

        place = on_node(self._node) if self._node else {}
        card = {**({self._card: 1.0} if self._card else {}), **place}
        for name in names:
            self._groups[name] = placement_group([card] * self._sizes[name], strategy=strategy)
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
            nodes = _nodes_of_bundles(group)
            self._order[name] = sorted(nodes, key=lambda index: (nodes[index], index))
            if name == self._group_of("rollout"):
                order = self._order[name][: self._engine_cards]
                check_engines([nodes[index] for index in order], self._cards_per_engine)

    def seat(self, role: str, place: int) -> Seat:
        """The card of rank or engine `place` of a role."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        name = self._group_of(role)
        share = SHARES[role] if self._colocate and role in SHARED else 1.0
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._groups[name], placement_group_bundle_index=self._order[name][place]
        )
        cards: dict[str, Any] = {}
        if self._card is not None:
            cards = {"num_gpus": share} if self._card == "GPU" else {"resources": {self._card: share}}
        return Seat({"num_cpus": 0, "scheduling_strategy": strategy, **cards})

    async def add(self, name: str, cards: int) -> Seat:
        """A seat on `cards` cards of a new group `name`; `give_back` frees them. Raises when none are free in time."""
        self._sizes[name] = cards
        await self._reserve([name], "STRICT_PACK")  # an engine is on one node
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


def spreads(resource: Mapping[str, RoleResource], *, colocate: bool, here: float, transport: str) -> bool:
    """Whether the run needs more cards than this node has, `here`; ConfigError for what works on one node only."""
    needed = sum(group_sizes(resource, colocate=colocate).values())
    if needed <= here:
        return False
    why = f"--resource needs {needed} cards, this node has {here:g}, and "
    if transport == "shm":
        raise ConfigError(
            f"{why}engines on other nodes cannot read weights from this one's memory: add --checkpoint-engine-backend "
            "gloo, or give roles fewer cards"
        )
    return True


def check_engines(nodes: Sequence[str], cards_per_engine: int) -> None:
    """Raise where an engine's cards, consecutive ones of `nodes` (the node of each card), are on several nodes."""
    for first in range(0, len(nodes) - cards_per_engine + 1, cards_per_engine):
        if len(set(nodes[first : first + cards_per_engine])) > 1:
            raise ConfigError(
                f"--rollout-num-gpus-per-engine {cards_per_engine} does not divide the cards that the nodes have left "
                f"for rollout ({', '.join(str(nodes.count(node)) for node in dict.fromkeys(nodes))}), and an engine "
                "must be on one node: use smaller engines, or other numbers in --resource"
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


def _nodes_of_bundles(group: Any) -> dict[int, str]:
    """{bundle index: id of its node}."""
    from ray.util.placement_group import placement_group_table

    return placement_group_table(group)["bundles_to_node_id"]
