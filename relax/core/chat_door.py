# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""OpenAI's routes on the rollout role's door: chats go to the router, or past it where it would lose something.

The router reads a chat into a schema of its own: it drops SGLang's additions and refuses parts other than text and
images. A chat that has some goes to a serving engine directly, each to the next one.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from relax.core.rollout_door import Call

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
TIMEOUT_S = 3600.0  # a long answer under full engines
ROUTER_DROPS = frozenset({"input_ids", "rid", "return_token_ids", "return_meta_info", "stop_token_ids"})
ROUTER_PARTS = frozenset({"text", "image_url"})


def add_chat_routes(http: FastAPI, call: Call) -> None:
    """`call("serving")` -> {"router": url or None, "engines": urls, "lora_path": of the policy, or None}."""
    proxy = _Proxy()

    @http.post(CHAT)
    async def chat(request: Request) -> Response:
        body, serving = read_body(await request.body()), await call("serving")
        if serving.get("lora_path") is not None:
            body.setdefault("lora_path", serving["lora_path"])
        return await proxy.send("POST", choose(body, serving, next(proxy.turns)) + CHAT, body)

    @http.get(MODELS)
    async def models() -> Response:
        return await proxy.send("GET", choose({}, await call("serving"), 0) + MODELS, None)


def read_body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise HTTPException(400, f"the body must be a JSON object, got {type(body).__name__}")
    return body


def choose(body: Mapping[str, Any], serving: Mapping[str, Any], turn: int) -> str:
    """The address that a chat goes to."""
    engines, router = serving["engines"], serving["router"]
    if not engines:
        raise HTTPException(503, "no engine serves: they are starting, asleep without a version, or lost")
    if not passes_router(body):
        return engines[turn % len(engines)]
    if router is None:
        raise HTTPException(503, "this run has no router")
    return router


def passes_router(body: Mapping[str, Any]) -> bool:
    """Whether the router passes on everything that the chat asks for."""
    if any(body.get(key) is not None for key in ROUTER_DROPS):
        return False
    messages = body.get("messages")
    contents = [m.get("content") for m in messages if isinstance(m, Mapping)] if isinstance(messages, list) else []
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return all(isinstance(part, Mapping) and part.get("type") in ROUTER_PARTS for part in parts)


class _Proxy:
    """One HTTP session, opened at the first request and as old as the door."""

    def __init__(self) -> None:
        self.turns = itertools.count()
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, url: str, body: Mapping[str, Any] | None) -> Response:
        """The upstream's answer with its status; 502 when nothing answers."""
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=10.0)
            self._session = aiohttp.ClientSession(trust_env=False, timeout=timeout)
        try:
            reply = await self._session.request(method, url, json=body)
            if body is not None and body.get("stream") and reply.status == 200:
                return StreamingResponse(_events(reply), media_type="text/event-stream")
            async with reply:
                raw = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise HTTPException(502, f"{url} does not answer: {error!r}") from error
        return Response(raw, reply.status, media_type=reply.content_type)


async def _events(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """A stream as it comes; a break in it is told as an error chunk, and the end comes in any case."""
    import aiohttp

    try:
        async with reply:
            async for piece in reply.content.iter_any():
                yield piece
    except (aiohttp.ClientError, TimeoutError) as error:
        logger.warning("stream broke url=%s error=%r", reply.url, error)
        text = json.dumps(
            {"error": {"message": f"the stream broke: {error!r}", "type": "upstream_error", "code": 502}}
        )
        yield f"data: {text}\n\ndata: [DONE]\n\n".encode()
