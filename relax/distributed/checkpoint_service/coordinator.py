# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The coordinator of the checkpoint service: who is there, who sends weights to whom, which version is where.

Plain state on an injected clock, without HTTP (`api.py`), torch or Ray. One owner calls it; it is not locked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule.clock import Clock
from relax.utils.errors import RelaxError

SENDER = "actor"
ROLE_MAPPINGS: Mapping[str, tuple[str, ...]] = {SENDER: ("rollout", "actor_fwd", "reference")}  # sender -> receivers
MAX_WEIGHT_METAS = 65536  # announcements waiting to be cleared
VERSIONS_KEPT = 64


class UnknownNode(RelaxError):
    """No such member; the message names those that are there."""


class TooManyWeightMetas(RelaxError):
    """Announcements are sent and never cleared."""


@dataclass
class Node:
    """One member. `metadata` holds tp / pp ranks, `is_pp_src_rank` and the like, as its role wrote them."""

    role: str
    rank: int
    world_size: int  # of the role
    ip: str
    port: int
    device_id: int
    metadata: dict[str, Any]
    last_heartbeat: float  # coordinator's clock, seconds
    joined: int  # order of registration

    @property
    def node_id(self) -> str:
        return f"{self.role}_{self.rank}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "node_id": self.node_id}


@dataclass
class WeightMeta:
    """Tensors that a sender is about to broadcast in `group_name`, in this order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str
    index: int = 0

    def __post_init__(self) -> None:
        lengths = len(self.names), len(self.dtypes), len(self.shapes)
        if len(set(lengths)) != 1:
            raise ValueError(f"names, dtypes and shapes must have one length, got {lengths}")


@dataclass
class Coordinator:
    """Members, topology, announcements and versions."""

    clock: Clock
    heartbeat_timeout_s: float = 30.0
    role_mappings: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: ROLE_MAPPINGS)
    _nodes: dict[tuple[str, int], Node] = field(default_factory=dict)
    _metas: list[WeightMeta] = field(default_factory=list)
    _manifests: dict[int, WeightManifest] = field(default_factory=dict)
    _installed: dict[str, int] = field(default_factory=dict)
    _joined: int = 0

    # ------------------------------------------------------------------ members

    def register(
        self,
        role: str,
        rank: int | None,
        *,
        world_size: int = 1,
        ip: str = "",
        port: int = 0,
        device_id: int = 0,
        metadata: Mapping[str, Any] | None = None,
    ) -> Node:
        """Add a member; `rank` None takes the smallest free one. Registering again starts a new incarnation."""
        if rank is None:
            rank = next(place for place in range(len(self._nodes) + 1) if (role, place) not in self._nodes)
        self._joined += 1
        node = Node(role, rank, world_size, ip, port, device_id, dict(metadata or {}), self.clock.now(), self._joined)
        self._nodes[role, rank] = node
        self._installed.pop(node.node_id, None)
        return node

    def unregister(self, role: str, rank: int) -> None:
        node = self.node(role, rank)
        del self._nodes[role, rank]
        self._installed.pop(node.node_id, None)

    def heartbeat(self, role: str, rank: int) -> float:
        """Note that the member lives; returns the coordinator's time."""
        node = self.node(role, rank)
        node.last_heartbeat = self.clock.now()
        return node.last_heartbeat

    def node(self, role: str, rank: int) -> Node:
        if (role, rank) not in self._nodes:
            there = ", ".join(node.node_id for node in self.nodes()) or "nobody"
            raise UnknownNode(f"{role}_{rank} is not registered; registered are {there}")
        return self._nodes[role, rank]

    def nodes(self, role: str | None = None) -> list[Node]:
        """Members in global order: senders, then their receivers, then other roles, each by rank."""
        order = list(dict.fromkeys([*self.role_mappings, *(r for rs in self.role_mappings.values() for r in rs)]))
        place = {name: index for index, name in enumerate(order)}
        chosen = [node for node in self._nodes.values() if role is None or node.role == role]
        return sorted(chosen, key=lambda node: (place.get(node.role, len(order)), node.role, node.rank))

    def alive(self, node: Node) -> bool:
        return self.clock.now() - node.last_heartbeat <= self.heartbeat_timeout_s

    def dead(self) -> list[Node]:
        """Members whose last heartbeat is older than the time-out."""
        return [node for node in self.nodes() if not self.alive(node)]

    # ------------------------------------------------------------------ topology

    def global_rank(self, role: str, rank: int) -> int:
        return self.nodes().index(self.node(role, rank))

    def peer(self, role: str, rank: int, peer_role: str) -> Node:
        """The member of `peer_role` that `role` rank `rank` talks to: the same rank, modulo how many there are."""
        self.node(role, rank)
        peers = self.nodes(peer_role)
        if not peers:
            raise UnknownNode(f"{role}_{rank} has no peer: nobody of role {peer_role} is registered")
        return peers[rank % len(peers)]

    def update_groups(self, role: str, rank: int, *, need_update_ref: bool) -> dict[str, Any]:
        """Broadcast groups of a weight update, one a pipeline stage of the sender; dead members are left out.

        Group ranks: the stage's source rank is 0, its receivers follow in global order.
        """
        node = self.node(role, rank)
        sender = role if role in self.role_mappings else self._sender_of(role)
        sources = self._stage_sources(sender)
        receivers = [
            member
            for name in self.role_mappings[sender]
            if name != "reference" or need_update_ref
            for member in self.nodes(name)
            if self.alive(member)
        ]
        groups = [
            {
                "group_name": f"update_{sender}_pp_{stage}",
                "pp_rank": stage,
                "members": [member.node_id for member in (source, *receivers)],
                "ranks": [self.global_rank(member.role, member.rank) for member in (source, *receivers)],
            }
            for stage, source in sorted(sources.items())
        ]
        return {
            "global_rank": self.global_rank(node.role, node.rank),
            "world_size": len(sources) + len(receivers),
            "train_pp_size": max((_int(n.metadata, "pp_size", 1) for n in self.nodes(sender)), default=1),
            "pp_groups": groups,
        }

    def _sender_of(self, role: str) -> str:
        for sender, receivers in self.role_mappings.items():
            if role in receivers:
                return sender
        raise UnknownNode(f"role {role} takes no part in weight updates; the mapping is {dict(self.role_mappings)}")

    def _stage_sources(self, sender: str) -> dict[int, Node]:
        """The sending member of each pipeline stage: marked `is_pp_src_rank`, else the stage's lowest rank."""
        sources: dict[int, Node] = {}
        for node in self.nodes(sender):
            stage = _int(node.metadata, "pp_rank", 0)
            marked = bool(node.metadata.get("is_pp_src_rank"))
            if self.alive(node) and (stage not in sources or marked):
                sources[stage] = node
        return sources

    # ------------------------------------------------------------------ announcements

    def send_weight_meta(self, meta: WeightMeta) -> int:
        """Queue an announcement; returns its index. Receivers read by index and may all read the same one."""
        if len(self._metas) >= MAX_WEIGHT_METAS:
            raise TooManyWeightMetas(f"{len(self._metas)} announcements wait; clear them after each update")
        meta.index = len(self._metas)
        self._metas.append(meta)
        return meta.index

    def recv_weight_meta(self, index: int) -> WeightMeta | None:
        return self._metas[index] if 0 <= index < len(self._metas) else None

    def clear_weight_meta(self) -> None:
        self._metas.clear()

    # ------------------------------------------------------------------ versions

    def publish(self, manifest: WeightManifest) -> None:
        """Note a published version. A resumed run may publish one again; the oldest beyond 64 are forgotten."""
        self._manifests[manifest.version] = manifest
        for version in sorted(self._manifests)[:-VERSIONS_KEPT]:
            del self._manifests[version]

    def retire(self, before: int) -> None:
        for version in [version for version in self._manifests if version < before]:
            del self._manifests[version]

    def rewind(self, version: int) -> None:
        """Forget versions above `version`: the run goes on from an older checkpoint."""
        for newer in [published for published in self._manifests if published > version]:
            del self._manifests[newer]

    def installed(self, engine: str, version: int) -> None:
        """Note that `engine` (its node id or url) serves `version`."""
        self._installed[engine] = version

    def left(self, engine: str) -> None:
        self._installed.pop(engine, None)

    def latest(self) -> WeightManifest | None:
        return self._manifests[max(self._manifests)] if self._manifests else None

    def versions(self) -> dict[str, Any]:
        """Published versions, and which engine has which."""
        return {
            "versions": sorted(self._manifests),
            "latest": max(self._manifests, default=None),
            "installed": dict(sorted(self._installed.items())),
        }

    # ------------------------------------------------------------------ reports

    def topology(self, role: str | None = None) -> dict[str, Any]:
        nodes = self.nodes(role)
        return {"nodes": [node.to_json() for node in nodes], "world_size": len(nodes)}

    def health(self) -> dict[str, Any]:
        dead = [node.node_id for node in self.dead()]
        return {
            "status": "degraded" if dead else "healthy",
            "timestamp": self.clock.now(),
            "world_size": len(self._nodes),
            "dead_nodes": dead,
        }

    def dump(self) -> dict[str, Any]:
        """Everything, for debugging."""
        return {
            **self.topology(),
            "health": self.health(),
            "role_mappings": {sender: list(receivers) for sender, receivers in self.role_mappings.items()},
            "weight_metas": len(self._metas),
            **self.versions(),
        }


def _int(metadata: Mapping[str, Any], name: str, default: int) -> int:
    value: Any = metadata.get(name, default)
    return value if isinstance(value, int) else default
