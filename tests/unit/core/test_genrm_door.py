# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The genrm door: bodies, answers and statuses."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from relax.core.genrm_door import add_genrm_routes


@pytest.fixture
def door():
    calls: list[tuple[Any, ...]] = []
    states = {"__default__": {"genrm-engine-0": "healthy"}}

    async def call(method: str, *args: Any) -> Any:
        calls.append((method, *args))
        if method == "health":
            return states
        if method == "metrics":
            return {"num_engines": 1}
        if args[2] == "maths":
            raise HTTPException(400, "route_key 'maths' names no judge")
        return {"response": "1"}

    http = FastAPI()
    add_genrm_routes(http, call)
    return TestClient(http), calls, states


def test_a_judge_is_asked_with_what_the_body_says(door):
    client, calls, _ = door
    body = {"messages": [{"role": "user", "content": "?"}], "sampling_params": {"temperature": 0}}
    assert client.post("/generate", json=body).json() == {"response": "1"}
    assert calls == [("generate", body["messages"], {"temperature": 0}, None)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"messages": "text"}, 422),
        ({"messages": [], "rout_key": "x"}, 422),
        ({"messages": [{"role": "user", "content": "?"}], "route_key": "maths"}, 400),
    ],
)
def test_other_bodies_are_refused(door, body, status):
    assert door[0].post("/generate", json=body).status_code == status


def test_health_is_200_while_every_engine_answers(door):
    client, _, states = door
    assert client.get("/health").json() == states
    states["__default__"]["genrm-engine-0"] = "EngineLost: gone"
    assert client.get("/health").status_code == 503
    assert client.get("/metrics").json() == {"num_engines": 1}
