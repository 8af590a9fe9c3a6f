# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The Serve deployments: thin HTTP doors in front of the workers. No torch and no bus in here.

/{role}/get_step, set_step, status, health   every role
/{role}/stop_service                         every role: the run ends after the rollout in training
/rollout/...                                 the rollout role, see rollout_door.py; /rollout/v1/...: chat_door.py
/genrm/...                                   judge models, see genrm_door.py
/dcs_coordinator/...                         membership and weight versions
/metrics/...                                 the metrics service, see metrics_door.py
/scale_rollout                               so many engines in all
/                                            which roles there are
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.routing import APIRoute

from relax.core.chat_door import add_chat_routes
from relax.core.genrm_door import add_genrm_routes
from relax.core.metrics_door import build_metrics_routes, process_board
from relax.core.rollout_door import Call, add_rollout_routes, add_scale_route
from relax.distributed.checkpoint_service.api import build_coordinator_routes
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.checkpoint_service.coordinator import Coordinator
from relax.schedule.clock import RealClock
from relax.utils.errors import EngineLost, RelaxError
from relax.utils.stacks import answer_as

DOOR_OPTIONS = {"num_cpus": 0}


def role_app(role: str, worker_name: str, namespace: str) -> Any:
    """The Serve application of one role."""
    from ray import serve

    async def call(method: str, *args: Any) -> Any:
        return await call_worker(worker_name, namespace, role, method, *args)

    http = FastAPI(title=f"Relax {role}")
    if role == "genrm":  # its own /health comes first
        add_genrm_routes(http, call)
    add_common_routes(http, call)
    if role == "rollout":
        add_rollout_routes(http, call)
        add_chat_routes(http, call)

    @serve.deployment(name=role, num_replicas=1, ray_actor_options=DOOR_OPTIONS, max_ongoing_requests=256)
    @serve.ingress(http)
    class Door:
        def __init__(self) -> None:
            answer_as(f"door-{role}")

    return Door.bind()


def add_common_routes(http: FastAPI, call: Call) -> None:
    @http.get("/get_step")
    async def get_step() -> dict[str, int]:
        return {"step": await call("get_step")}

    @http.post("/set_step")
    async def set_step(step: int) -> dict[str, str]:
        await call("set_step", step)
        return {"status": "ok"}

    @http.post("/stop_service")
    async def stop_service() -> dict[str, str]:
        """The run trains the rollout it is at to its end, writes a checkpoint when --save is given, and stops."""
        await call("stop_service")
        return {"status": "ok"}

    @http.get("/status")
    async def status() -> dict[str, Any]:
        return await call("status")

    @http.get("/health")
    async def health() -> dict[str, str]:
        await call("get_step")
        return {"status": "ok"}


def control_app(
    roles: Mapping[str, str], namespace: str, *, metrics: bool, card: str | None, cards_per_engine: int
) -> Any:
    """Routes that belong to no role share one application: the root, the number of engines, the weight service's
    coordinator, the metrics. `roles` is {role: worker}, `card` the Ray resource of which an engine takes
    `cards_per_engine`; None where cards are not counted."""
    from ray import serve

    coordinator, http = process_coordinator(), control_routes(roles, metrics=metrics)

    async def call(method: str, *args: Any) -> Any:
        return await call_worker(roles["rollout"], namespace, "rollout", method, *args)

    if "rollout" in roles:
        add_scale_route(http, call, functools.partial(room_for_engines, card, cards_per_engine))

    @serve.deployment(name="control", num_replicas=1, ray_actor_options=DOOR_OPTIONS, max_ongoing_requests=100)
    @serve.ingress(http)
    class Control:
        """The coordinator and the metrics board live in this replica; the driver talks to them by handle."""

        def __init__(self) -> None:
            answer_as("door-control")

        async def published(self, manifest: dict[str, Any], engines: Mapping[str, int]) -> None:
            coordinator.publish(WeightManifest.from_json(manifest))
            for engine, version in engines.items():
                coordinator.installed(engine, version)

        async def show_metrics(
            self, board: str, first: int, rows: Sequence[tuple[int, Mapping[str, float]]]
        ) -> tuple[str, int]:
            return process_board().show(board, first, rows)

        async def take_reports(
            self, board: str, after: int, wait_s: float
        ) -> tuple[str, list[tuple[int, dict[str, Any]]]]:
            return await process_board().take(board, after, wait_s)

    return Control.bind()


def control_routes(roles: Mapping[str, str], *, metrics: bool) -> FastAPI:
    http = FastAPI(title="Relax control")
    services = {"dcs_coordinator": build_coordinator_routes(process_coordinator())}
    if metrics:
        services["metrics"] = build_metrics_routes()
    for name, router in services.items():
        add_routes(http, router, f"/{name}")

    @http.get("/")
    async def root() -> dict[str, Any]:
        return {"roles": {role: f"/{role}" for role in roles}, **{name: f"/{name}" for name in services}}

    return http


def add_routes(http: FastAPI, router: APIRouter, prefix: str) -> None:
    """Add a router's routes for good.

    `include_router` looks at the functions again when the first request comes. Serve has copied them by then, without
    the names of their annotations, and a body would be taken for a query parameter.
    """
    for route in router.routes:
        assert isinstance(route, APIRoute)
        http.add_api_route(
            prefix + route.path,
            route.endpoint,
            methods=sorted(route.methods or ()),
            response_model=route.response_model,
            include_in_schema=route.include_in_schema,
        )


def room_for_engines(card: str | None, cards_per_engine: int) -> tuple[int, str] | None:
    """How many engines the cluster's free cards are enough for, and that in words; None where cards are not counted.
    What is free lies on any node, so an engine of several cards may still find no place."""
    import ray

    if card is None:
        return None

    free = int(ray.available_resources().get(card, 0))
    return free // cards_per_engine, f"an engine takes {cards_per_engine} {card}, and {free} of the cluster are free"


class ProcessCoordinator(Coordinator):
    """Unpickles as the one coordinator of its process: Serve copies an application and its class one by one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return process_coordinator, ()


@functools.cache
def process_coordinator() -> ProcessCoordinator:
    return ProcessCoordinator(RealClock())


async def call_worker(worker_name: str, namespace: str, role: str, method: str, *args: Any) -> Any:
    """One call to a worker by its name; its errors become HTTP answers."""
    import ray

    try:
        worker = ray.get_actor(worker_name, namespace=namespace)
    except ValueError as error:
        raise HTTPException(503, f"the worker of {role} is not running") from error
    try:
        return await worker.call.remote(role, method, args)
    except ray.exceptions.RayTaskError as error:
        refused = getattr(error.cause, "status", None)  # of a role that has an answer of its own
        if isinstance(refused, int):
            raise HTTPException(refused, str(error.cause)) from error
        if isinstance(error.cause, EngineLost):
            raise HTTPException(503, str(error.cause)) from error
        status = 400 if isinstance(error.cause, (RelaxError, ValueError, AttributeError)) else 500
        raise HTTPException(status, f"{type(error.cause).__name__}: {error.cause}") from error
    except ray.exceptions.RayActorError as error:
        raise HTTPException(503, f"the worker of {role} died") from error
