# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The number of engines by one short call: the documented curl command, as it is typed, against the real route."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from relax.core.rollout_door import add_scale_route


class Role:
    """The rollout role's answers; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answer = {"direction": "scale_out", "request_id": "9f1c", "status": "PENDING", "message": "15 join"}

    async def call(self, method: str, *args: Any) -> Any:
        self.asked.append((method, *args))
        return dict(self.answer)


@pytest.fixture
def door() -> Iterator[tuple[Role, int]]:
    """A server on a free port."""
    role, http = Role(), FastAPI()
    add_scale_route(http, role.call, lambda: (20, "20 are free"))
    server = uvicorn.Server(uvicorn.Config(http, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    yield role, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)


def curl(port: int, *words: str) -> tuple[int, Any]:
    """(status, answer); the name `controller` and port 8000 lead to the server."""
    there = ["--connect-to", f"controller:8000:127.0.0.1:{port}", "--max-time", "30", "-s", "-w", "\n%{http_code}"]
    done = subprocess.run(["curl", *there, *words], capture_output=True, text=True, timeout=60, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


TYPED = ("-X", "POST", "http://controller:8000/scale_rollout", "-d", '{"num_rollouts": 16}')


def test_the_documented_curl_command_works_as_it_is_typed(door: tuple[Role, int]) -> None:
    role, port = door
    assert curl(port, *TYPED) == (
        200,
        {"num_rollouts": 16, **role.answer, "progress": "/rollout/scale_out/9f1c"},
    )
    assert role.asked == [("scale_rollout", 16, (20, "20 are free"))]


def test_a_json_content_type_makes_no_difference(door: tuple[Role, int]) -> None:
    role, port = door
    role.answer = {"direction": "scale_in", "request_id": None, "status": "NOOP", "message": "16 engines serve"}
    assert curl(port, *TYPED, "-H", "Content-Type: application/json") == (200, {"num_rollouts": 16, **role.answer})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("num_rollouts=16", "the body is not JSON"),
        ("", "the body is not JSON"),
        ("[16]", "a whole number >= 1; got [16]"),
        ('{"num_rollouts": 0}', "a whole number >= 1"),
        ('{"num_rollouts": true}', "a whole number >= 1"),
        ('{"num_rollouts": "16"}', "a whole number >= 1"),
        ('{"num_rollouts": 16, "force": true}', "a whole number >= 1"),
    ],
)
def test_any_other_body_is_refused_with_what_to_send(door: tuple[Role, int], body: str, words: str) -> None:
    role, port = door
    status, answer = curl(port, *TYPED[:-1], body)
    assert status == 400
    assert words in answer["detail"]
    assert 'send {"num_rollouts": N}' in answer["detail"]
    assert role.asked == []
