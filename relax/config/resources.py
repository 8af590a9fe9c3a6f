# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--resource`: how many cards each role holds, and whether they fit the cluster.

On a machine without CUDA cards a card is a slot: one training rank or one engine on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relax.config.flags import nearest
from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.config.run import RunConfig

ROLES = ("actor", "critic", "rollout", "advantages", "reference", "actor_fwd", "teacher", "genrm", "sft")
KNOWN_LATER = {
    "reward": "reward services",
}
REQUIRED = ("actor", "rollout")
SHARED = ("actor", "critic", "rollout")  # roles that take turns on the same cards with --colocate


@dataclass(frozen=True)
class RoleResource:
    """One entry of `--resource`."""

    replicas: int
    gpus: int  # cards in all


@dataclass(frozen=True)
class ClusterArgs:
    """The cluster numbers that follow from `--resource`."""

    actor_num_nodes: int
    actor_num_gpus_per_node: int
    rollout_num_gpus: int
    num_engines: int
    needed_gpus: int


def parse_resource(resource: Mapping[str, Any]) -> dict[str, RoleResource]:
    """{role: RoleResource}, or ConfigError that names the role and the form."""
    if not resource:
        raise ConfigError('--resource is empty; give at least \'{"actor": [1, 1], "rollout": [1, 1]}\'')
    return {role: _role_resource(role, pair) for role, pair in resource.items()}


def _role_resource(role: str, pair: Any) -> RoleResource:
    if role in KNOWN_LATER:
        raise ConfigError(f"--resource names {role!r}, a role of {KNOWN_LATER[role]}, not available in this version")
    if role not in ROLES:
        near = nearest(role, ROLES)
        hint = f"did you mean {near!r}?" if near else f"roles are {', '.join(ROLES)}"
        raise ConfigError(f"--resource names the unknown role {role!r}: {hint}")
    whole = isinstance(pair, Sequence) and len(pair) == 2 and all(type(number) is int for number in pair)
    if not whole:
        raise ConfigError(
            f"--resource {role!r} must be [replicas, cards in all], two whole numbers, got {_plain(pair)}"
        )
    if pair[0] != 1:
        raise ConfigError(
            f"--resource {role!r} asks for {pair[0]} replicas; replicas must be 1: give all cards to one"
        )
    least = 1 if role in (*REQUIRED, "critic") else 0
    if pair[1] < least:
        raise ConfigError(f"--resource {role!r} must hold at least {least} cards, got {pair[1]}")
    return RoleResource(*pair)


def _plain(pair: Any) -> Any:
    return list(pair) if isinstance(pair, tuple) else pair


def needed_gpus(resource: Mapping[str, RoleResource], *, colocate: bool) -> int:
    """Cards that a run takes: with colocate the larger of the sharing roles plus the others, else the sum."""
    if not colocate:
        return sum(entry.gpus for entry in resource.values())
    shared = max((entry.gpus for role, entry in resource.items() if role in SHARED), default=0)
    return shared + sum(entry.gpus for role, entry in resource.items() if role not in SHARED)


def resource_table(resource: Mapping[str, RoleResource], *, colocate: bool) -> str:
    """One line a role, for messages and --dry-run."""
    lines = []
    for role, entry in resource.items():
        note = " (shared)" if colocate and role in SHARED else ""
        lines.append(f"  {role:<12}{entry.gpus:>4} {'card' if entry.gpus == 1 else 'cards'}{note}")
    rule = "largest shared role + the others" if colocate else "sum"
    return "\n".join([*lines, f"  {'needed':<12}{needed_gpus(resource, colocate=colocate):>4} ({rule})"])


def check_fits(resource: Mapping[str, RoleResource], *, colocate: bool, available: int, unit: str = "GPUs") -> None:
    """Raise ConfigError with the table and the remedies when the cluster has fewer cards than the roles need.

    `available` is counted by the caller: GPUs of the Ray cluster, or its CPU slots (`unit`).
    """
    needed = needed_gpus(resource, colocate=colocate)
    if needed <= available:
        return
    remedies = ["add nodes to the cluster", "give roles fewer cards in --resource"]
    if not colocate:
        remedies.append("let actor and rollout share theirs by --colocate --max-staleness 0")
    raise ConfigError(
        f"--resource needs {needed} {unit} and the cluster has {available}:\n"
        f"{resource_table(resource, colocate=colocate)}\n"
        f"Remedies: {'; '.join(remedies)}."
    )


def split_over_nodes(gpus: int, per_node: int) -> tuple[int, int]:
    """(nodes, cards on each) of a role with `gpus` cards; whole nodes once it is larger than one."""
    if gpus <= per_node:
        return 1, gpus
    if gpus % per_node:
        raise ConfigError(
            f"--resource gives the actor {gpus} cards, which fill no whole number of nodes of {per_node}: "
            f"use a multiple of {per_node}, or set --num-gpus-per-node"
        )
    return gpus // per_node, per_node


def default_resource(
    gpus: int,
    *,
    colocate: bool,
    reference: bool,
    actor_fwd: bool,
    fully_async: bool,
    rollout_gpus: int | None,
    critic: bool = False,
    teacher: bool = False,
    genrm: int = 0,
) -> dict[str, list[int]]:
    """Roles and cards when `--resource` is not given: `gpus` cards shared, or split in two halves.

    `gpus` is 0 without CUDA: then each role gets one slot.
    """
    wanted = {"reference": reference and fully_async, "actor_fwd": actor_fwd and fully_async, "teacher": teacher}
    extra = {role: 1 for role, needed in wanted.items() if needed}
    if genrm:
        extra["genrm"] = genrm
    apart = sum(extra.values())
    if colocate:
        total = max(1, gpus - apart) if gpus else 1
        trainers = {role: [1, total] for role in ("actor", *(("critic",) if critic else ()))}
        return {**trainers, "rollout": [1, rollout_gpus or total]} | {
            role: [1, cards] for role, cards in extra.items()
        }
    total = gpus or 2 + critic + apart
    rollout = rollout_gpus or max(1, (total - apart) // (2 + critic))
    left = total - apart - rollout
    roles = {"actor": [1, max(1, left - left // 2 if critic else left)], "rollout": [1, rollout]}
    if critic:
        roles["critic"] = [1, max(1, left // 2)]
    if fully_async:
        roles["advantages"] = [1, 0]
    return roles | {role: [1, cards] for role, cards in extra.items()}


def _derive_cluster_args_from_resource(config: RunConfig) -> ClusterArgs:
    """The cluster numbers of a run; the name is public."""
    nodes, per_node = split_over_nodes(config.resource["actor"].gpus, config.gpus_per_node)
    return ClusterArgs(
        actor_num_nodes=nodes,
        actor_num_gpus_per_node=per_node,
        rollout_num_gpus=config.resource["rollout"].gpus,
        num_engines=config.num_engines,
        needed_gpus=config.needed_gpus,
    )
