# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Internal HTTP calls over real sockets on 127.0.0.1."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from relax.utils import http_utils
from relax.utils.errors import EngineLost
from relax.utils.http_utils import HttpError, close_session, post, recording, register_local, unregister_local

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **options: Any
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, **options)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await close_session()
        await runner.cleanup()


async def echo(request: web.Request) -> web.Response:
    return web.json_response({"path": request.path, "got": await request.json()})


class Counter:
    """A recorder that counts and stamps."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.failures = 0

    async def before(self, payload: dict[str, Any]) -> None:
        payload["rid"] = "g1.0.a0.t0"

    def after(self, payload: Any, answer: Any) -> None:
        self.answers.append((payload["rid"], answer))

    def failed(self, payload: Any) -> None:
        self.failures += 1


async def test_system_proxies_never_catch_an_internal_call(monkeypatch):
    """S5."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with serving(echo) as url:
        assert (await post(f"{url}/x", {"a": 1}))["got"] == {"a": 1}


async def test_a_server_that_closes_idle_connections_fails_no_call():
    """S5: the kept-alive socket is stale, the call is made again on a new one."""

    async with serving(echo, keepalive_timeout=0.05) as url:
        for number in range(4):
            assert (await post(f"{url}/x", {"n": number}))["got"] == {"n": number}
            await asyncio.sleep(0.12)


async def test_300_calls_are_in_flight_at_a_time():
    """A25: no hidden limit of the client."""
    inside, all_in = 0, asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        nonlocal inside
        inside += 1
        if inside == 300:
            all_in.set()
        await asyncio.wait_for(all_in.wait(), 30)
        return web.json_response(await request.json())

    async with serving(handler) as url:
        answers = await asyncio.gather(*(post(f"{url}/generate", {"n": n}) for n in range(300)))
    assert answers == [{"n": n} for n in range(300)]  # no crossing of answers


async def test_an_error_status_is_not_tried_again_and_shows_the_body():
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.json_response({"error": "no_available_workers"}, status=503)

    async with serving(handler) as url:
        with pytest.raises(HttpError, match=r"POST .*/generate answered 503: .*no_available_workers") as caught:
            await post(f"{url}/generate", {})
    assert (calls, caught.value.status) == (1, 503)


async def test_a_refused_connection_is_tried_a_bounded_number_of_times():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    url = f"http://127.0.0.1:{port}/generate"
    with pytest.raises(EngineLost, match=f"POST {url} cannot be reached after 2 tries"):
        await http_utils.request("POST", url, {}, timeout_s=5.0, tries=2)
    await close_session()


async def test_a_silent_server_ends_the_call_at_its_time_limit():
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.json_response({})

    async with serving(handler) as url:
        with pytest.raises(EngineLost, match=r"did not answer within 0\.05 s"):
            await post(f"{url}/generate", {}, timeout_s=0.05)


async def test_only_generate_calls_of_the_recording_task_are_tapped():
    tap = Counter()
    async with serving(echo) as url:
        with recording(tap):
            answer = await post(f"{url}/generate", {"input_ids": [1]})
            await asyncio.gather(*(post(f"{url}/generate", {"input_ids": [n]}) for n in (2, 3)))
            await post(f"{url}/judge", {"text": "x"})
        await post(f"{url}/generate", {"input_ids": [4]})
    assert answer["got"] == {"input_ids": [1], "rid": "g1.0.a0.t0"}
    assert sorted(a["got"]["input_ids"][0] for _, a in tap.answers) == [1, 2, 3]


async def test_the_recorder_hears_of_a_failed_and_of_a_cancelled_request():
    tap, started = Counter(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if (await request.json()).get("hang"):
            started.set()
            await asyncio.sleep(0.5)
        return web.Response(status=400, text="bad")

    async with serving(handler) as url:
        with recording(tap):
            with pytest.raises(HttpError):
                await post(f"{url}/generate", {})
            task = asyncio.create_task(post(f"{url}/generate", {"hang": True}))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert (tap.failures, tap.answers) == (2, [])


class Local:
    async def post(self, path: str, payload: Any = None) -> Any:
        return {"path": path, "got": payload}


async def test_a_registered_prefix_is_served_in_this_process():
    register_local("http://engine.local:1/", Local())
    register_local("http://engine.local:1/inner", Local())
    try:
        assert await post("http://engine.local:1/generate", {"a": 1}) == {"path": "/generate", "got": {"a": 1}}
        assert (await post("http://engine.local:1/inner/generate", {}))["path"] == "/generate"
        assert http_utils._find_local("http://engine.local:10/generate") is None
    finally:
        unregister_local("http://engine.local:1")
        unregister_local("http://engine.local:1/inner")


def test_import_pulls_in_no_torch():
    code = "import sys, relax.utils.http_utils; print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
