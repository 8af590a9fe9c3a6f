# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The doors' applications as Serve hands them to a replica: pickled by value, twice."""

from __future__ import annotations

import copyreg
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
from fastapi import FastAPI
from starlette.datastructures import State
from starlette.testclient import TestClient

from relax.core.doors import control_routes
from relax.core.metrics_door import build_metrics_routes

REPORT = {"step": 0, "metric_name": "custom/x", "metric_value": 1}


@pytest.fixture(autouse=True)
def picklers() -> Iterator[None]:
    """Serve's own for what FastAPI's applications have: a lock becomes a new one, a state keeps its values."""
    lock: Any = type(threading.Lock())
    copyreg.pickle(lock, lambda _: (threading.Lock, ()))
    copyreg.pickle(State, lambda state: (State, (state._state,)))
    yield
    for kind in (lock, State):
        del copyreg.dispatch_table[kind]


def copied(http: FastAPI) -> TestClient:
    for _ in range(2):
        http = cloudpickle.loads(cloudpickle.dumps(http))
    return TestClient(http)


def test_bodies_reach_the_services_of_the_control_door() -> None:
    client = copied(control_routes({"rollout": "rollout"}, metrics=True))
    assert client.get("/").json() == {
        "roles": {"rollout": "/rollout"},
        "dcs_coordinator": "/dcs_coordinator",
        "metrics": "/metrics",
    }
    member = client.post("/dcs_coordinator/register", json={"role_name": "actor", "world_size": 2}).json()
    assert (member["status"], member["node_id"]) == ("ok", "actor_0")
    waiting = client.get("/metrics/health").json()["waiting"]
    assert client.post("/metrics/log_metric", json=REPORT).json() == {"status": "ok"}
    assert client.get("/metrics/health").json()["waiting"] == waiting + 1
    assert client.post("/metrics/log_metric", json={"step": 0}).status_code == 422
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")


def test_an_included_router_would_lose_bodies() -> None:
    """Why the routes are added one by one; when this fails, `include_router` will do."""
    http = FastAPI()
    http.include_router(build_metrics_routes(), prefix="/metrics")
    assert copied(http).post("/metrics/log_metric", json=REPORT).status_code == 422


def test_without_the_metrics_service_there_is_no_such_route() -> None:
    client = copied(control_routes({}, metrics=False))
    assert "metrics" not in client.get("/").json()
    assert client.get("/metrics/health").status_code == 404
