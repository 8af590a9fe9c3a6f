# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""HTTP routes of the coordinator. No torch, no Ray: they run in a thin door.

A wrong request is answered with 404 (unknown member), 409 (queue full) or 422 (bad body), and a `detail` that names
what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from relax.distributed.checkpoint_service.coordinator import (
    Coordinator,
    TooManyWeightMetas,
    UnknownNode,
    WeightMeta,
)

POLL_S = 0.02  # of a long poll
MAX_WAIT_S = 30.0


class Registration(BaseModel):
    """Body of POST /register; `rank` null asks for the smallest free one."""

    model_config = ConfigDict(extra="forbid")

    role_name: str = Field(min_length=1)
    rank: int | None = Field(default=None, ge=0)
    world_size: int = Field(default=1, ge=1)
    ip: str = ""
    port: int = Field(default=0, ge=0, le=65535)
    device_id: int = 0
    metadata: dict[str, Any] = Field(default_factory=dict)


class Announcement(BaseModel):
    """Body of POST /send_weight_meta."""

    model_config = ConfigDict(extra="forbid")

    names: list[str]
    dtypes: list[str]
    shapes: list[list[NonNegativeInt]]
    group_name: str = Field(min_length=1)

    @model_validator(mode="after")
    def _one_length(self) -> Announcement:
        WeightMeta(self.names, self.dtypes, self.shapes, self.group_name)
        return self


def build_coordinator_routes(coordinator: Coordinator) -> APIRouter:
    """A router to mount under the service's prefix (`/dcs_coordinator`)."""
    router = APIRouter()
    _add_member_routes(router, coordinator)
    _add_topology_routes(router, coordinator)
    _add_weight_routes(router, coordinator)
    _add_report_routes(router, coordinator)
    return router


def _add_member_routes(router: APIRouter, coordinator: Coordinator) -> None:
    @router.post("/register")
    async def register(body: Registration) -> dict[str, Any]:
        node = coordinator.register(
            body.role_name,
            body.rank,
            world_size=body.world_size,
            ip=body.ip,
            port=body.port,
            device_id=body.device_id,
            metadata=body.metadata,
        )
        return {"status": "ok", "message": f"{node.node_id} registered", "rank": node.rank, "node_id": node.node_id}

    @router.delete("/unregister")
    async def unregister(role: str, rank: int = Query(ge=0)) -> dict[str, str]:
        with _refusals():
            coordinator.unregister(role, rank)
        return {"status": "ok"}

    @router.get("/heartbeat")
    async def heartbeat(role: str, rank: int = Query(ge=0)) -> dict[str, Any]:
        with _refusals():
            return {"status": "ok", "timestamp": coordinator.heartbeat(role, rank)}


def _add_topology_routes(router: APIRouter, coordinator: Coordinator) -> None:
    @router.get("/topology")
    async def topology(role_filter: str | None = None) -> dict[str, Any]:
        return coordinator.topology(role_filter)

    @router.get("/peer")
    async def peer(role: str, peer_role: str, rank: int = Query(ge=0)) -> dict[str, Any]:
        with _refusals():
            return coordinator.peer(role, rank, peer_role).to_json()

    @router.get("/node")
    async def node(role: str, rank: int = Query(ge=0)) -> dict[str, Any]:
        with _refusals():
            return coordinator.node(role, rank).to_json()

    @router.get("/global_rank")
    async def global_rank(role: str, rank: int = Query(ge=0)) -> dict[str, int]:
        with _refusals():
            return {"rank": coordinator.global_rank(role, rank)}

    @router.get("/get_model_update_group_ranks")
    async def update_group_ranks(role: str, rank: int = Query(ge=0), need_update_ref: bool = False) -> dict[str, Any]:
        with _refusals():
            return coordinator.update_groups(role, rank, need_update_ref=need_update_ref)


def _add_weight_routes(router: APIRouter, coordinator: Coordinator) -> None:
    @router.post("/send_weight_meta")
    async def send_weight_meta(body: Announcement) -> dict[str, Any]:
        with _refusals():
            meta = WeightMeta(body.names, body.dtypes, body.shapes, body.group_name)
            return {"status": "ok", "index": coordinator.send_weight_meta(meta)}

    @router.get("/recv_weight_meta")
    async def recv_weight_meta(
        index: int = Query(default=0, ge=0), wait_s: float = Query(default=0.0, ge=0.0, le=MAX_WAIT_S)
    ) -> dict[str, Any]:
        """The announcement `index`, or {} when there is none within `wait_s` seconds."""
        end = coordinator.clock.now() + wait_s
        while (meta := coordinator.recv_weight_meta(index)) is None and coordinator.clock.now() < end:
            await coordinator.clock.sleep(POLL_S)
        return {} if meta is None else vars(meta)

    @router.get("/clear_weight_meta")
    async def clear_weight_meta() -> dict[str, str]:
        coordinator.clear_weight_meta()
        return {"status": "ok"}

    @router.get("/versions")
    async def versions() -> dict[str, Any]:
        return coordinator.versions()

    @router.get("/versions/latest")
    async def latest() -> dict[str, Any]:
        manifest = coordinator.latest()
        if manifest is None:
            raise HTTPException(404, "no weight version has been published")
        return manifest.to_json()


def _add_report_routes(router: APIRouter, coordinator: Coordinator) -> None:
    @router.get("/health")
    async def health() -> dict[str, Any]:
        return coordinator.health()

    @router.get("/debug/topology")
    async def dump() -> dict[str, Any]:
        return coordinator.dump()


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the coordinator's refusals into HTTP answers."""
    try:
        yield
    except UnknownNode as error:
        raise HTTPException(404, str(error)) from error
    except TooManyWeightMetas as error:
        raise HTTPException(409, str(error)) from error
