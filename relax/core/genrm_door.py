# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Routes of the genrm role's door. No torch in here.

POST /generate  {messages, sampling_params?, route_key?} -> {"response": text}
                422 for another shape, 400 for an unknown judge or what its engine refuses, 503 without an answer
GET  /health    {judge: {engine: state}}; 503 when an engine does not answer
GET  /metrics   engines, requests in flight and waiting, counts
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict

from relax.core.rollout_door import Call


class GenerateBody(BaseModel):
    """Body of POST /generate."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, Any]]
    sampling_params: dict[str, Any] | None = None
    route_key: str | None = None


def add_genrm_routes(http: FastAPI, call: Call) -> None:
    @http.post("/generate")
    async def generate(body: GenerateBody) -> dict[str, str]:
        return await call("generate", body.messages, body.sampling_params, body.route_key)

    @http.get("/health")
    async def health() -> dict[str, dict[str, str]]:
        found = await call("health")
        if any(state != "healthy" for engines in found.values() for state in engines.values()):
            raise HTTPException(503, found)
        return found

    @http.get("/metrics")
    async def metrics() -> dict[str, Any]:
        return await call("metrics")
