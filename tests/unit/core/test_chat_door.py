# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Chats at the rollout role's door: where they go, and what an upstream that fails looks like."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI, HTTPException

from relax.backends.engine_client import AsgiEngineClient, EngineRefused
from relax.core.chat_door import CHAT, MODELS, add_chat_routes, choose
from relax.utils.errors import EngineLost

HELLO = [{"role": "user", "content": "hello"}]
SERVING = {"router": "http://router", "engines": ["http://a", "http://b"]}


class Upstream:
    """A server that answers as told and keeps what it was sent."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.status = 200

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if not body.get("stream"):
            return web.json_response({"from": "upstream"}, status=self.status)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b'data: {"piece":1}\n\n')
        if body.get("user") == "breaks":
            request.transport.close()
            return reply
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    server, app = Upstream(), web.Application()
    app.router.add_post(CHAT, server.chat)
    app.router.add_get(MODELS, server.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def door(serving: dict[str, Any]) -> AsgiEngineClient:
    http = FastAPI()

    async def call(method: str) -> dict[str, Any]:
        assert method == "serving"
        return serving

    add_chat_routes(http, call)
    return AsgiEngineClient(http)


@pytest.mark.parametrize(
    ("extra", "goes_to"),
    [
        ({}, "http://router"),
        ({"seed": 3, "logprobs": True, "return_token_ids": None}, "http://router"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "http://router",
        ),
        ({"return_token_ids": True}, "http://b"),
        ({"input_ids": [1]}, "http://b"),
        ({"rid": "g1.0.a0.t0"}, "http://b"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "http://b"),
    ],
)
def test_what_the_router_would_lose_goes_to_an_engine(extra, goes_to):
    assert choose({"messages": HELLO, **extra}, SERVING, turn=3) == goes_to


def test_engines_take_turns():
    body = {"messages": HELLO, "return_meta_info": True}
    assert [choose(body, SERVING, turn) for turn in range(3)] == ["http://a", "http://b", "http://a"]


@pytest.mark.parametrize(
    "serving", [{"router": "http://router", "engines": []}, {"router": None, "engines": ["http://a"]}]
)
def test_without_engine_or_router_nothing_is_asked(serving):
    with pytest.raises(HTTPException) as caught:
        choose({"messages": HELLO}, serving, 0)
    assert caught.value.status_code == 503


async def test_a_chat_and_its_answer_pass_unchanged(upstream):
    server, url = upstream
    client = door({"router": url, "engines": [url]})
    body = {"messages": HELLO, "temperature": 0.5, "anything": [1, {"a": None}]}
    assert await client.post(CHAT, body) == {"from": "upstream"}
    assert server.bodies == [body]
    assert await client.get(MODELS) == {"object": "list", "data": [{"id": "m"}]}
    server.status = 422
    with pytest.raises(EngineRefused) as caught:
        await client.post(CHAT, body)
    assert caught.value.status == 422


async def test_a_chat_asks_for_the_policys_adapter_where_engines_keep_it_beside_the_model(upstream):
    server, url = upstream
    client = door({"router": url, "engines": [url], "lora_path": "relax_policy_lora"})
    await client.post(CHAT, {"messages": HELLO})
    await client.post(CHAT, {"messages": HELLO, "lora_path": "another"})
    assert [body["lora_path"] for body in server.bodies] == ["relax_policy_lora", "another"]


async def test_a_stream_passes_through_and_a_break_is_told_before_the_end(upstream):
    _, url = upstream
    client = door({"router": url, "engines": [url]})
    assert await client.post(CHAT, {"messages": HELLO, "stream": True}) == 'data: {"piece":1}\n\ndata: [DONE]\n\n'
    text = await client.post(CHAT, {"messages": HELLO, "stream": True, "user": "breaks"})
    first, error, end, rest = text.split("\n\n")
    assert (first, end, rest) == ('data: {"piece":1}', "data: [DONE]", "")
    assert "the stream broke" in json.loads(error.removeprefix("data: "))["error"]["message"]


async def test_bad_bodies_and_dead_upstreams_have_their_own_status():
    client = door({"router": "http://127.0.0.1:9", "engines": ["http://127.0.0.1:9"]})  # nobody listens there
    with pytest.raises(EngineLost, match=r"HTTP 502.*does not answer"):
        await client.post(CHAT, {"messages": HELLO})
    with pytest.raises(EngineLost, match="HTTP 503"):
        await door({"router": "http://router", "engines": []}).post(CHAT, {"messages": HELLO})
    with pytest.raises(EngineRefused, match="must be a JSON object, got list"):
        await client._send("POST", CHAT, [1], repeat=False)
