# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A stand-in for an inference engine that speaks SGLang's `/generate`, without a model.

The next token is a pure function of the seed and the place, its log-prob of the token, so a test can say what must
come out. It is a `LocalClient` for `register_local` (no sockets), and `app()` serves it over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

FIRST_ID, NUM_IDS = 40, 50  # sampled ids lie in [FIRST_ID, FIRST_ID + NUM_IDS)


def token_at(seed: int, place: int) -> int:
    """The id sampled at `place` (0 = first token of the whole sequence) under a seed."""
    return FIRST_ID + (seed * 31 + place * 7) % NUM_IDS


def log_prob_of(token: int) -> float:
    """Nats, exact in binary."""
    return -(token % 16 + 1) / 16.0


class FakeEngine:
    """`num_tokens(payload)` tokens a request, one each `token_s` seconds (0: at once).

    `decode` turns ids into text. `edit(payload, answer)` may change an answer. `errors` are raised one by one by the
    next requests. `version` is read at every token, so a test may change it during a request.
    """

    def __init__(
        self,
        *,
        num_tokens: Callable[[Mapping[str, Any]], int] = lambda payload: 5,
        decode: Callable[[list[int]], str] = lambda ids: " ".join(map(str, ids)),
        token_s: float = 0.0,
        eos_id: int = 1,
    ) -> None:
        self.num_tokens, self.decode, self.token_s, self.eos_id = num_tokens, decode, token_s, eos_id
        self.version: int | str = 0
        self.expanded_by = 0  # prompt tokens beyond the ids that were sent, as media make them
        self.requests: list[dict[str, Any]] = []
        self.errors: list[Exception] = []
        self.aborted: list[str | None] = []
        self.edit: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]] = lambda payload, answer: answer
        self.running: dict[str, asyncio.Event] = {}
        self.peak = 0

    async def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any:
        payload = dict(payload or {})
        if path.rstrip("/").endswith("/generate"):
            return await self.generate(payload)
        if path.endswith("/abort_request"):
            return await self.abort(payload.get("rid"))
        raise AssertionError(f"the fake engine has no route {path}")

    async def abort(self, rid: str | None = None) -> None:
        self.aborted.append(rid)
        for running, event in self.running.items():
            if rid in (None, running):
                event.set()

    async def generate(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(payload)
        if self.errors:
            raise self.errors.pop(0)
        rid = payload.get("rid", f"anonymous{len(self.requests)}")
        self.running[rid] = asyncio.Event()
        self.peak = max(self.peak, len(self.running))
        try:
            return self.edit(payload, await self._sample(rid, payload, self.running[rid]))
        finally:
            del self.running[rid]

    async def _sample(self, rid: str, payload: dict[str, Any], abort: asyncio.Event) -> dict[str, Any]:
        params = payload.get("sampling_params", {})
        wanted, limit = self.num_tokens(payload), params.get("max_new_tokens", 1 << 30)
        ids, versions, finish = [], [], {"type": "stop", "matched": self.eos_id}
        prompt = payload.get("input_ids") or [0]
        while not ids or ids[-1] != self.eos_id:
            await asyncio.sleep(self.token_s)
            if abort.is_set():
                finish = {"type": "abort", "message": "aborted"}
                break
            last = len(ids) + 1 == wanted
            ids.append(self.eos_id if last else token_at(params.get("sampling_seed", 0), len(prompt) + len(ids)))
            versions.append(self.version)
            if not last and len(ids) >= limit:
                finish = {"type": "length", "length": limit}
                break
        meta = {
            "id": rid,
            "finish_reason": finish,
            "prompt_tokens": len(prompt) + self.expanded_by,
            "completion_tokens": len(ids),
            "output_token_logprobs": [[log_prob_of(token), token, None] for token in ids],
            "weight_version": str(self.version),
            "weight_versions": _spans(versions),
        }
        return {"text": self.decode(ids), "output_ids": ids, "meta_info": meta}

    def app(self) -> Any:
        """The same engine as an ASGI application, with the routes that the router asks for."""
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def generate(request: Request) -> JSONResponse:
            return JSONResponse(await self.generate(await request.json()))

        async def facts(request: Request) -> JSONResponse:
            return JSONResponse({"model_path": "fake", "tokenizer_path": "fake", "is_generation": True})

        routes = [Route("/generate", generate, methods=["POST"])]
        paths = ("/health", "/health_generate", "/server_info", "/get_server_info", "/model_info", "/get_model_info")
        return Starlette(routes=routes + [Route(path, facts) for path in paths])


def _spans(versions: list[int | str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for place, version in enumerate(versions):
        if not spans or spans[-1]["version"] != str(version):
            spans.append({"version": str(version), "start": place, "end": place})
        spans[-1]["end"] = place + 1
    return spans
