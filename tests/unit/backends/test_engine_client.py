# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engine client against a small stand-in server on a real socket, and against an ASGI application."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from relax.backends.engine_client import AsgiEngineClient, EngineRefused, HttpEngineClient, engine_info
from relax.utils.errors import EngineLost, WeightSyncError


class StandIn:
    """Answers like an engine and remembers what it was asked."""

    def __init__(self):
        self.calls = []
        self.status = {}
        self.answers = {}
        self.then = {}  # path -> called once, after the path's next answer is decided
        self.drop = {}  # path -> connections to close without an answer
        self.waiting = 0
        self.most_waiting = 0
        self.gate = asyncio.Event()

    async def handle(self, request):
        body = await request.read()
        self.calls.append((request.method, request.path, json.loads(body) if body else None))
        if self.drop.get(request.path, 0):
            self.drop[request.path] -= 1
            request.transport.close()
            return web.Response()
        if request.path == "/generate":
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)
            if self.most_waiting >= 300:
                self.gate.set()
            await self.gate.wait()
            self.waiting -= 1
        answer = self.answers.get(request.path, {"path": request.path})
        reply = web.json_response(answer, status=self.status.get(request.path, 200))
        self.then.pop(request.path, lambda: None)()
        return reply


@asynccontextmanager
async def serving(timeout_s=30.0, **options):
    stand_in = StandIn()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", stand_in.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    client = HttpEngineClient(f"http://127.0.0.1:{port}/", timeout_s=timeout_s, **options)
    try:
        yield stand_in, client
    finally:
        await client.close()
        stand_in.gate.set()
        await runner.cleanup()


async def test_each_verb_is_the_route_and_body_that_sglang_knows():
    async with serving() as (stand_in, client):
        stand_in.gate.set()
        await client.generate({"input_ids": [1], "rid": "g1.0.a0.t0"})
        await client.abort("g1.0.a0.t0")
        await client.abort()
        await client.pause("in_place")
        await client.resume()
        await client.flush()
        await client.weights_begin()
        await client.weights_from_disk(Path("/dev/shm/v3"), 3)
        await client.weights_end(3)
        await client.sleep(["kv_cache"])
        await client.wake(["weights"])
        await client.post("/init_weights_update_group", {"world_size": 2})
        assert [(path, body) for _, path, body in stand_in.calls] == [
            ("/generate", {"input_ids": [1], "rid": "g1.0.a0.t0"}),
            ("/abort_request", {"rid": "g1.0.a0.t0"}),
            ("/abort_request", {"abort_all": True}),
            ("/pause_generation", {"mode": "in_place"}),
            ("/continue_generation", {}),
            ("/flush_cache", {}),
            ("/begin_weight_update", {}),
            (
                "/update_weights_from_disk",
                {"model_path": "/dev/shm/v3", "weight_version": "3", "flush_cache": True},
            ),
            ("/end_weight_update", {"weight_version": "3"}),
            ("/release_memory_occupation", {"tags": ["kv_cache"]}),
            ("/resume_memory_occupation", {"tags": ["weights"]}),
            ("/init_weights_update_group", {"world_size": 2}),
        ]


async def test_the_version_of_sglang_is_that_of_model_info():
    """Its /server_info keeps the version that it started with through every update."""
    async with serving() as (stand_in, client):
        stand_in.answers["/server_info"] = {"version": "0.5.23", "weight_version": "default"}
        stand_in.answers["/model_info"] = {"weight_version": "7"}
        assert (await client.info()).weight_version == "7"
        stand_in.answers["/server_info"] = {"backend": "native", "weight_version": "8"}
        assert (await client.info()).weight_version == "8"


async def test_three_hundred_calls_are_open_at_once():
    async with serving() as (stand_in, client):
        # the stand-in answers nobody before all 300 have arrived: a connection limit would hang here
        await asyncio.gather(*(client.generate({"input_ids": [i]}) for i in range(300)))
        assert stand_in.most_waiting == 300


async def test_a_refusal_carries_the_servers_words_and_is_not_repeated():
    async with serving() as (stand_in, client):
        stand_in.gate.set()
        stand_in.status["/generate"] = 400
        stand_in.answers["/generate"] = {"error": {"message": "sampling_params.top_p must be in (0, 1]"}}
        with pytest.raises(EngineRefused, match=r"top_p must be in \(0, 1\]") as caught:
            await client.generate({})
        assert caught.value.status == 400
        assert len(stand_in.calls) == 1


async def test_a_lost_connection_is_an_engine_lost_that_names_url_and_log():
    client = HttpEngineClient("http://127.0.0.1:9", timeout_s=5, log_path=Path("logs/engine-0.log"))
    with pytest.raises(EngineLost) as caught:
        await client.generate({"input_ids": [1]})
    assert "http://127.0.0.1:9" in str(caught.value) and "logs/engine-0.log" in str(caught.value)
    await client.close()


async def test_only_calls_that_may_be_repeated_are_repeated():
    async with serving() as (stand_in, client):
        stand_in.gate.set()
        stand_in.drop = {"/pause_generation": 2, "/generate": 1, "/end_weight_update": 1}
        await client.pause("retract")
        assert [path for _, path, _ in stand_in.calls] == ["/pause_generation"] * 3
        for call in (client.generate({"input_ids": [1]}), client.weights_end(1)):
            with pytest.raises(EngineLost):
                await call
        assert len(stand_in.calls) == 5


async def test_a_silent_engine_is_lost_after_the_given_time():
    async with serving(timeout_s=0.2) as (_, client):
        with pytest.raises(EngineLost, match=r"no answer within 0.2 s"):
            await client.generate({"input_ids": [1]})


async def test_success_false_is_a_weight_sync_error():
    async with serving() as (stand_in, client):
        stand_in.answers["/update_weights_from_disk"] = {"success": False, "message": "shapes differ"}
        with pytest.raises(WeightSyncError, match="shapes differ"):
            await client.weights_from_disk(Path("/x"), 1)


async def test_system_proxies_are_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving() as (_, client):
        await client.flush()


def test_capabilities_of_sglang_and_of_the_native_engine_are_told_apart():
    sglang = engine_info(
        "u", {"weight_version": "9", "enable_deterministic_inference": False, "max_running_requests": 64}
    )
    assert (sglang.backend, sglang.seeds, sglang.exact, sglang.version_spans) == ("sglang", False, False, True)
    assert engine_info("u", {"enable_deterministic_inference": True}).seeds is True
    native = engine_info(
        "u", {"backend": "native", "seeds": True, "version_spans": True, "exact": True, "weight_version": 3}
    )
    assert (native.backend, native.weight_version, native.exact) == ("native", "3", True)


async def test_info_falls_back_to_the_older_route():
    async with serving() as (stand_in, client):
        stand_in.status["/server_info"] = 404
        stand_in.answers["/get_server_info"] = {"weight_version": "5"}
        assert (await client.info()).weight_version == "5"


async def test_the_in_process_client_speaks_to_any_asgi_application():
    seen = []

    async def app(scope, receive, send):
        message = await receive()
        seen.append((scope["method"], scope["path"], message["body"]))
        status = 200 if scope["path"] == "/flush_cache" else 503
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"Cache ", "more_body": True})
        await send({"type": "http.response.body", "body": b"flushed."})

    client = AsgiEngineClient(app)
    assert await client.post("/flush_cache") == "Cache flushed."
    with pytest.raises(EngineLost, match="503"):
        await client.generate({"input_ids": [1]})
    assert seen[0] == ("POST", "/flush_cache", b"{}")


async def test_an_update_that_its_sender_left_open_is_closed_before_the_next_begins():
    """SGLang 0.5.23 answers 400 to a second begin, and would refuse every later version."""
    async with serving() as (engine, client):
        refusal = "a weight-update session is already open; call end_weight_update() first"
        engine.status["/begin_weight_update"] = 400
        engine.answers["/begin_weight_update"] = {"success": False, "message": refusal}
        engine.then["/end_weight_update"] = engine.status.clear
        await client.weights_begin()
    assert [path for _, path, _ in engine.calls] == [
        "/begin_weight_update",
        "/end_weight_update",
        "/begin_weight_update",
    ]
