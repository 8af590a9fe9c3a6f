# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from __future__ import annotations

import pytest

from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.checkpoint_service.coordinator import Coordinator, TooManyWeightMetas, UnknownNode, WeightMeta


class HandClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def make_coordinator(*roles: str) -> Coordinator:
    coordinator = Coordinator(HandClock())
    for role in roles:
        coordinator.register(role, None)
    return coordinator


def manifest(version: int) -> WeightManifest:
    return WeightManifest(version, "shm", f"/dev/shm/run/v{version}", (), 0)


def test_ranks_are_given_from_the_smallest_free_one() -> None:
    coordinator = make_coordinator("rollout", "rollout", "rollout", "actor")
    coordinator.unregister("rollout", 1)
    assert coordinator.register("rollout", None).node_id == "rollout_1"
    assert coordinator.register("rollout", None).rank == 3


def test_a_member_is_dead_only_after_the_time_out_and_lives_again_by_a_heartbeat() -> None:
    coordinator = make_coordinator("actor", "rollout")
    coordinator.clock.time += 30.0
    assert coordinator.health()["dead_nodes"] == []  # exactly 30 s is still in time
    coordinator.heartbeat("actor", 0)
    coordinator.clock.time += 0.5
    assert coordinator.health() == {
        "status": "degraded",
        "timestamp": 130.5,
        "world_size": 2,
        "dead_nodes": ["rollout_0"],
    }
    assert coordinator.heartbeat("rollout", 0) == 130.5
    assert coordinator.health()["status"] == "healthy"


def test_global_order_is_senders_then_receivers_then_others_by_rank() -> None:
    coordinator = make_coordinator("critic", "reference", "rollout", "actor", "actor_fwd", "rollout", "actor")
    order = [node.node_id for node in coordinator.nodes()]
    assert order == ["actor_0", "actor_1", "rollout_0", "rollout_1", "actor_fwd_0", "reference_0", "critic_0"]
    assert [coordinator.global_rank("rollout", 1), coordinator.global_rank("critic", 0)] == [3, 6]


def test_a_peer_is_the_same_rank_modulo_the_number_of_peers() -> None:
    coordinator = make_coordinator("actor", "actor", "actor", "rollout", "rollout")
    assert [coordinator.peer("actor", rank, "rollout").rank for rank in range(3)] == [0, 1, 0]
    with pytest.raises(UnknownNode, match="nobody of role reference"):
        coordinator.peer("actor", 0, "reference")


def test_each_pipeline_stage_broadcasts_from_its_source_to_the_living_receivers() -> None:
    coordinator = Coordinator(HandClock())
    for rank in range(4):  # stages 0, 0, 1, 1; rank 3 is marked as the source of stage 1
        stage = {"pp_rank": rank // 2, "pp_size": 2, "is_pp_src_rank": rank == 3}
        coordinator.register("actor", rank, metadata=stage)
    for role in ("reference", "rollout", "rollout"):
        coordinator.register(role, None)
    coordinator.clock.time += 31
    for node in coordinator.nodes():
        if node.node_id != "rollout_0":
            coordinator.heartbeat(node.role, node.rank)
    groups = coordinator.update_groups("rollout", 1, need_update_ref=False)
    # global order: actor 0 1 2 3, rollout 4 5, reference 6
    assert groups["pp_groups"] == [
        {"group_name": "update_actor_pp_0", "pp_rank": 0, "members": ["actor_0", "rollout_1"], "ranks": [0, 5]},
        {"group_name": "update_actor_pp_1", "pp_rank": 1, "members": ["actor_3", "rollout_1"], "ranks": [3, 5]},
    ]
    assert (groups["global_rank"], groups["world_size"], groups["train_pp_size"]) == (5, 3, 2)
    with_reference = coordinator.update_groups("actor", 0, need_update_ref=True)
    assert with_reference["pp_groups"][0]["members"] == ["actor_0", "rollout_1", "reference_0"]


def test_a_role_without_a_part_in_updates_is_refused_by_name() -> None:
    with pytest.raises(UnknownNode, match="role critic takes no part"):
        make_coordinator("critic").update_groups("critic", 0, need_update_ref=False)


def test_announcements_are_read_by_index_until_cleared() -> None:
    coordinator = make_coordinator()
    first, second = WeightMeta(["a"], ["float32"], [[2]], "g"), WeightMeta(["b"], ["float32"], [[3]], "g")
    assert [coordinator.send_weight_meta(first), coordinator.send_weight_meta(second)] == [0, 1]
    assert coordinator.recv_weight_meta(1) is second and coordinator.recv_weight_meta(0) is first
    assert coordinator.recv_weight_meta(2) is None and coordinator.recv_weight_meta(-1) is None
    coordinator.clear_weight_meta()
    assert coordinator.recv_weight_meta(0) is None
    with pytest.raises(ValueError, match=r"one length, got \(2, 1, 1\)"):
        WeightMeta(["a", "b"], ["float32"], [[1]], "g")


def test_announcements_that_nobody_clears_are_bounded() -> None:
    coordinator = make_coordinator()
    meta = WeightMeta([], [], [], "g")
    coordinator._metas = [meta] * 65536
    with pytest.raises(TooManyWeightMetas, match="65536 announcements wait"):
        coordinator.send_weight_meta(meta)


def test_versions_say_what_is_published_and_who_has_what() -> None:
    coordinator = make_coordinator("rollout")
    assert coordinator.latest() is None
    for version in (2, 3, 1):
        coordinator.publish(manifest(version))
    coordinator.installed("rollout_0", 2)
    coordinator.installed("http://127.0.0.1:1", 3)
    assert coordinator.versions() == {
        "versions": [1, 2, 3],
        "latest": 3,
        "installed": {"http://127.0.0.1:1": 3, "rollout_0": 2},
    }
    assert coordinator.latest() == manifest(3)
    coordinator.retire(before=2)
    coordinator.rewind(2)
    assert coordinator.versions()["versions"] == [2]
    coordinator.left("http://127.0.0.1:1")
    assert coordinator.versions()["installed"] == {"rollout_0": 2}


def test_a_restarted_member_has_no_version() -> None:
    coordinator = make_coordinator("rollout")
    coordinator.installed("rollout_0", 5)
    coordinator.register("rollout", 0, ip="10.0.0.2")
    assert coordinator.versions()["installed"] == {} and coordinator.node("rollout", 0).ip == "10.0.0.2"


def test_the_list_of_versions_is_bounded() -> None:
    coordinator = make_coordinator()
    for version in range(100):
        coordinator.publish(manifest(version))
    assert coordinator.versions()["versions"] == list(range(36, 100))
