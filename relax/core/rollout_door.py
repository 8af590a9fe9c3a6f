# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Routes of the rollout role's door: evaluation, engines that come and go, pauses. No torch and no bus in here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt

Call = Callable[..., Awaitable[Any]]
Room = Callable[[], tuple[int, str] | None]  # engines that free cards are enough for, and that in words; blocking


class ScaleOut(BaseModel):
    """Body of POST /scale_out."""

    model_config = ConfigDict(extra="forbid")

    model_name: str = "default"
    num_replicas: StrictInt = 0  # engines wanted in all
    engine_urls: list[str] = []
    timeout_secs: float | None = None


class ScaleIn(ScaleOut):
    """Body of POST /scale_in; `num_replicas` is how many stay, `engine_urls` names who leaves."""

    force: StrictBool = False
    dry_run: StrictBool = False


def add_rollout_routes(http: FastAPI, call: Call) -> None:
    add_evaluation_routes(http, call)
    add_engine_routes(http, call)


def add_evaluation_routes(http: FastAPI, call: Call) -> None:
    running: list[asyncio.Task[Any]] = []

    @http.get("/evaluate")
    async def evaluate(train_step: int = 0) -> dict[str, Any]:
        """Start an evaluation of the weights that the engines hold now."""
        if running and not running[-1].done():
            raise HTTPException(409, "an evaluation is running; ask /is_eval_done")
        running[:] = [asyncio.create_task(call("evaluate", train_step, train_step))]
        return {"status": "ok", "rollout_id": train_step}

    @http.get("/is_eval_done")
    async def is_eval_done() -> dict[str, bool]:
        if running and running[-1].done():
            running[-1].result()  # an evaluation that failed says so here
        return {"done": not running or running[-1].done()}


def add_engine_routes(http: FastAPI, call: Call) -> None:
    @http.get("/engines")
    async def engines(model_name: str = "default") -> dict[str, Any]:
        found: Mapping[str, Any] = await call("engines")
        rows = [{"engine_id": name, **engine} for name, engine in found.items()]
        return {"models": {model_name: {"engines": rows}}, "total_engines": len(rows)}

    @http.get("/can_do_update_weight_for_async")
    async def can_do_update_weight_for_async() -> int:
        """1: generation is held until /end_update_weight; 0: no rollout is whole yet."""
        return await call("can_update_weights")

    @http.get("/end_update_weight")
    async def end_update_weight() -> dict[str, str]:
        await call("end_weight_update")
        return {"status": "ok"}

    @http.get("/recover_rollout_engines")
    async def recover_rollout_engines() -> dict[str, str]:
        """Start engines that have died again; they join with the newest weights, as /engines shows."""
        return await call("recover_rollout_engines")

    @http.post("/scale_out")
    async def scale_out(body: ScaleOut) -> dict[str, Any]:
        """Have `num_replicas` engines in all; ask GET /scale_out/{request_id} how it goes."""
        return await call("scale_out", body.model_dump())

    @http.post("/scale_in")
    async def scale_in(body: ScaleIn) -> dict[str, Any]:
        """Remove engines that have joined, the newest first, down to `num_replicas`."""
        return await call("scale_in", body.model_dump())

    for direction in ("scale_out", "scale_in"):
        add_request_routes(http, call, direction)


def add_request_routes(http: FastAPI, call: Call, direction: Literal["scale_out", "scale_in"] | str) -> None:
    @http.get(f"/{direction}")
    async def requests(model_name: str | None = None, status: str | None = None) -> dict[str, Any]:
        return {"requests": await call("scale_requests", direction, model_name, status)}

    @http.get(f"/{direction}/{{request_id}}")
    async def request(request_id: str) -> dict[str, Any]:
        return await call("scale_request", direction, request_id)


def add_scale_route(http: FastAPI, call: Call, room: Room) -> None:
    """The short form at the root. `call` reaches the rollout role."""

    @http.post("/scale_rollout")
    async def scale_rollout(request: Request) -> dict[str, Any]:
        """Have `num_rollouts` engines in all, more or fewer. The body is JSON whatever its content type says."""
        wanted = number_of_rollouts(await request.body())
        found = await asyncio.to_thread(room)
        answer = await call("scale_rollout", wanted, found)
        if answer["request_id"] is not None:
            answer["progress"] = f"/rollout/{answer['direction']}/{answer['request_id']}"
        return {"num_rollouts": wanted, **answer}


def number_of_rollouts(body: bytes) -> int:
    """`num_rollouts` of a body; 400 for any other body."""
    form = """send {"num_rollouts": N}, the engines wanted in all"""
    try:
        values = json.loads(body)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON ({error}): {form}") from error
    wanted = values.get("num_rollouts") if isinstance(values, dict) else None
    if type(wanted) is not int or wanted < 1 or set(values) != {"num_rollouts"}:
        raise HTTPException(400, f"{form}, a whole number >= 1; got {body[:200].decode('utf-8', 'replace')}")
    return wanted
