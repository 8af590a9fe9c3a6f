# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from __future__ import annotations

import subprocess
import sys

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from relax.distributed.checkpoint_service.api import build_coordinator_routes
from relax.distributed.checkpoint_service.base import TensorEntry, WeightManifest
from relax.distributed.checkpoint_service.coordinator import Coordinator
from relax.schedule.clock import RealClock

META = {"names": ["w"], "dtypes": ["float32"], "shapes": [[2, 3]], "group_name": "update_actor_pp_0"}


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(RealClock())


@pytest.fixture
def client(coordinator: Coordinator) -> TestClient:
    app = FastAPI()
    app.include_router(build_coordinator_routes(coordinator), prefix="/dcs_coordinator")
    return TestClient(app, base_url="http://test/dcs_coordinator")


def register(client: TestClient, role: str, **extra: object) -> dict:
    answer = client.post("/register", json={"role_name": role, **extra})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_member_registers_beats_and_leaves(client: TestClient) -> None:
    answer = register(client, "actor", rank=0, world_size=2, ip="10.0.0.1", port=2000, device_id=3, metadata={"tp": 1})
    assert answer == {"status": "ok", "message": "actor_0 registered", "rank": 0, "node_id": "actor_0"}
    assert register(client, "actor")["rank"] == 1
    node = client.get("/node", params={"role": "actor", "rank": 0}).json()
    assert {node["ip"], node["port"], node["device_id"], node["world_size"]} == {"10.0.0.1", 2000, 3, 2}
    assert node["metadata"] == {"tp": 1}
    beat = client.get("/heartbeat", params={"role": "actor", "rank": 0}).json()
    assert beat["status"] == "ok" and beat["timestamp"] >= node["last_heartbeat"]
    assert client.delete("/unregister", params={"role": "actor", "rank": 0}).json() == {"status": "ok"}
    assert client.get("/node", params={"role": "actor", "rank": 0}).status_code == 404


def test_topology_peers_and_ranks(client: TestClient) -> None:
    for role in ("rollout", "actor", "actor"):
        register(client, role)
    everyone = client.get("/topology").json()
    assert [node["node_id"] for node in everyone["nodes"]] == ["actor_0", "actor_1", "rollout_0"]
    assert everyone["world_size"] == 3
    assert client.get("/topology", params={"role_filter": "rollout"}).json()["world_size"] == 1
    peer = client.get("/peer", params={"role": "actor", "rank": 1, "peer_role": "rollout"}).json()
    assert peer["node_id"] == "rollout_0"
    assert client.get("/global_rank", params={"role": "rollout", "rank": 0}).json() == {"rank": 2}
    groups = client.get("/get_model_update_group_ranks", params={"role": "actor", "rank": 0}).json()
    assert groups["pp_groups"][0]["members"] == ["actor_0", "rollout_0"]
    assert (groups["global_rank"], groups["world_size"], groups["train_pp_size"]) == (0, 2, 1)


def test_weight_metas_go_from_sender_to_receiver(client: TestClient) -> None:
    assert client.get("/recv_weight_meta", params={"index": 0}).json() == {}
    assert client.post("/send_weight_meta", json=META).json() == {"status": "ok", "index": 0}
    assert client.get("/recv_weight_meta", params={"index": 0, "wait_s": 5}).json() == {**META, "index": 0}
    assert client.get("/recv_weight_meta", params={"index": 1, "wait_s": 0.05}).json() == {}
    assert client.get("/clear_weight_meta").json() == {"status": "ok"}
    assert client.get("/recv_weight_meta").json() == {}


def test_versions_and_the_latest_manifest(client: TestClient, coordinator: Coordinator) -> None:
    answer = client.get("/versions/latest")
    assert answer.status_code == 404 and "no weight version" in answer.json()["detail"]
    manifest = WeightManifest(4, "shm", "/dev/shm/r/v4", (TensorEntry("w", "F32", (2, 3), "crc32:00000000"),), 24)
    coordinator.publish(manifest)
    coordinator.installed("rollout_0", 4)
    assert client.get("/versions").json() == {"versions": [4], "latest": 4, "installed": {"rollout_0": 4}}
    assert WeightManifest.from_json(client.get("/versions/latest").json()) == manifest


def test_health_and_dump(client: TestClient) -> None:
    register(client, "actor")
    health = client.get("/health").json()
    assert (health["status"], health["world_size"], health["dead_nodes"]) == ("healthy", 1, [])
    dump = client.get("/debug/topology").json()
    assert dump["nodes"][0]["node_id"] == "actor_0" and dump["weight_metas"] == 0


@pytest.mark.parametrize(
    ("method", "path", "request_", "status", "text"),
    [
        ("post", "/register", {"json": {"rank": 0}}, 422, "role_name"),
        ("post", "/register", {"json": {"role_name": "actor", "rank": -1}}, 422, "rank"),
        ("post", "/register", {"json": {"role_name": "actor", "rnak": 0}}, 422, "rnak"),
        ("post", "/register", {"json": {"role_name": "actor", "port": 70000}}, 422, "port"),
        ("post", "/register", {"content": b"{"}, 422, "body"),
        ("get", "/heartbeat", {"params": {"role": "actor", "rank": 0}}, 404, "registered are nobody"),
        ("get", "/heartbeat", {"params": {"role": "actor"}}, 422, "rank"),
        ("get", "/heartbeat", {"params": {"role": "actor", "rank": "x"}}, 422, "rank"),
        ("delete", "/unregister", {"params": {"role": "actor", "rank": 0}}, 404, "actor_0 is not registered"),
        ("get", "/peer", {"params": {"role": "a", "rank": 0, "peer_role": "b"}}, 404, "a_0 is not registered"),
        ("get", "/global_rank", {"params": {"role": "a", "rank": 0}}, 404, "a_0"),
        ("get", "/get_model_update_group_ranks", {"params": {"role": "a", "rank": 0}}, 404, "a_0"),
        ("post", "/send_weight_meta", {"json": {**META, "dtypes": []}}, 422, "one length, got (1, 0, 1)"),
        ("post", "/send_weight_meta", {"json": {**META, "shapes": [["x"]]}}, 422, "shapes"),
        ("post", "/send_weight_meta", {"json": {**META, "shapes": [[2, -3]]}}, 422, "shapes"),
        ("get", "/recv_weight_meta", {"params": {"index": -1}}, 422, "index"),
        ("get", "/recv_weight_meta", {"params": {"wait_s": 1e9}}, 422, "wait_s"),
    ],
)
def test_a_wrong_request_is_refused_with_a_text(
    client: TestClient, method: str, path: str, request_: dict, status: int, text: str
) -> None:
    answer = client.request(method, path, **request_)
    assert answer.status_code == status and text in answer.text, answer.text


def test_the_door_imports_neither_torch_nor_ray() -> None:
    code = (
        "import sys, relax.distributed.checkpoint_service.api, relax.distributed.checkpoint_service.updater, "
        "relax.distributed.bus.factory; "
        "sys.exit(' '.join(name for name in ('torch', 'ray', 'transformers') if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
