# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Requests to add, remove or restart engines while a run goes on: taken at the rollout role's door, carried out by the
controller, which asks for the next one and tells how it goes.

    scale_out   PENDING -> CREATING -> WEIGHT_SYNCING -> ACTIVE   | PARTIAL | FAILED
    scale_in    PENDING -> DRAINING -> REMOVING -> COMPLETED      | FAILED

Engines that run elsewhere, cancelling and the autoscaler have their place here: another source of orders, and another
end of a request.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from relax.components.messages import EngineOrder
from relax.utils.errors import RelaxError

ENDED = frozenset({"ACTIVE", "PARTIAL", "COMPLETED", "FAILED"})
DEFAULT_MODEL = "default"


class Refused(RelaxError):
    """The request cannot be taken. `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return Refused, (self.status, str(self))


@dataclass
class ScaleRequest:
    """What GET /scale_out/{id} and /scale_in/{id} answer. Times are seconds since 1970."""

    request_id: str
    direction: str  # scale_out | scale_in
    status: str
    model_name: str
    num_replicas: int  # engines wanted in all
    created_at: float
    updated_at: float
    engine_ids: list[str] = field(default_factory=list)  # that have joined
    engine_urls: list[str] = field(default_factory=list)
    selected_engines: list[str] = field(default_factory=list)  # to be removed
    removed_engines: list[str] = field(default_factory=list)
    failed_engines: list[str] = field(default_factory=list)
    error_message: str | None = None
    weight_version: int | None = None  # that the engines joined with
    cleanup_required: bool = False  # processes or cards of failed engines are still held

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        unused = ("selected_engines", "removed_engines") if self.direction == "scale_out" else ("engine_ids",)
        return {name: value for name, value in body.items() if name not in unused}


class EngineRequests:
    """One scale operation at a time; restarts of dead engines may come beside it.

    Args:
        initial: engines that the run started with; they are never removed.
        refused: why this run cannot change its engines, or None.
        wall_time: seconds since 1970, for people who read the answers.
    """

    def __init__(
        self, initial: Sequence[str], *, refused: str | None = None, wall_time: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._initial, self._refused, self._wall_time = frozenset(initial), refused, wall_time
        self._requests: dict[str, ScaleRequest] = {}
        self._orders: asyncio.Queue[EngineOrder] = asyncio.Queue()

    # ------------------------------------------------------------------ asked at the door

    def scale_out(self, body: Mapping[str, Any], current: Sequence[str]) -> dict[str, Any]:
        """{request_id, status PENDING | NOOP, message}."""
        wanted = self._wanted(body)
        if body.get("engine_urls"):
            raise Refused(
                400, "engine_urls: engines that run elsewhere cannot join in this version; give num_replicas"
            )
        missing = wanted - len(current)
        if missing <= 0:
            return _noop(f"{len(current)} engines serve, {wanted} were asked for")
        request = self._open("scale_out", body, wanted)
        self._orders.put_nowait(
            EngineOrder("scale_out", request.request_id, count=missing, timeout_s=body.get("timeout_secs"))
        )
        return _pending(request, f"{missing} engines are to join")

    def scale_in(self, body: Mapping[str, Any], current: Mapping[str, str]) -> dict[str, Any]:
        """As `scale_out`; `current` is {engine: url}. Engines that joined last leave first."""
        chosen = self._chosen(body, current)
        protected = [name for name in chosen if name in self._initial]
        if protected:
            raise Refused(
                400, f"the run started with {', '.join(protected)}: only engines that joined later can be removed"
            )
        if not chosen:
            return _noop(f"{len(current)} engines serve")
        if body.get("dry_run"):
            return {"request_id": None, "status": "DRY_RUN", "message": "nothing done", "selected_engines": chosen}
        request = self._open("scale_in", body, len(current) - len(chosen))
        request.selected_engines = chosen
        force, seconds = bool(body.get("force")), body.get("timeout_secs")
        self._orders.put_nowait(
            EngineOrder("scale_in", request.request_id, tuple(chosen), force=force, timeout_s=seconds)
        )
        return _pending(request, f"{', '.join(chosen)} are to leave")

    def scale_to(self, wanted: int, current: Mapping[str, str], room: tuple[int, str] | None = None) -> dict[str, Any]:
        """As `scale_out` or `scale_in`, whichever leads to `wanted` engines in all; the answer says which.

        `room` is how many more engines the cluster's free cards are enough for, and that in words; None: unknown.
        """
        if wanted > len(current):
            self._check()
            missing = wanted - len(current)
            if room is not None and room[0] < missing:
                text = f"{len(current)} engines serve and {missing} more have no place: {room[1]}; ask for at most "
                raise Refused(409, f"num_rollouts {wanted}: {text}{len(current) + room[0]}, or add nodes")
            return {"direction": "scale_out", **self.scale_out({"num_replicas": wanted}, tuple(current))}
        return {"direction": "scale_in", **self.scale_in({"num_replicas": wanted}, current)}

    def recover(self) -> None:
        """Have every dead engine started again."""
        self._check()
        self._orders.put_nowait(EngineOrder("recover", uuid.uuid4().hex[:12]))

    def one(self, direction: str, request_id: str) -> dict[str, Any]:
        request = self._requests.get(request_id)
        if request is None or request.direction != direction:
            raise Refused(404, f"there is no {direction} request {request_id!r}")
        return request.to_json()

    def all(self, direction: str, model_name: str | None, status: str | None) -> list[dict[str, Any]]:
        """Requests in the order of their coming, filtered."""
        return [
            request.to_json()
            for request in self._requests.values()
            if request.direction == direction
            and model_name in (None, request.model_name)
            and (status is None or status.upper() == request.status)
        ]

    def running(self, direction: str) -> bool:
        return any(r.direction == direction and r.status not in ENDED for r in self._requests.values())

    # ------------------------------------------------------------------ asked by the controller

    async def next(self, patience_s: float) -> EngineOrder | None:
        """The next order, or None after `patience_s`."""
        try:
            return await asyncio.wait_for(self._orders.get(), patience_s)
        except TimeoutError:
            return None

    def update(self, request_id: str, changes: Mapping[str, Any]) -> None:
        """How a request goes; lists grow by what is given."""
        request = self._requests.get(request_id)
        if request is None:  # an order that is no request
            return
        for name, value in changes.items():
            setattr(request, name, [*getattr(request, name), *value] if isinstance(value, list) else value)
        request.updated_at = self._wall_time()

    # ------------------------------------------------------------------ pieces

    def _check(self) -> None:
        if self._refused is not None:
            raise Refused(400, self._refused)

    def _wanted(self, body: Mapping[str, Any]) -> int:
        self._check()
        if body.get("model_name", DEFAULT_MODEL) != DEFAULT_MODEL:
            raise Refused(404, f"there is no model {body['model_name']!r}; this run serves {DEFAULT_MODEL!r}")
        wanted, seconds = body.get("num_replicas", 0), body.get("timeout_secs")
        if type(wanted) is not int or wanted < 0:
            raise Refused(400, f"num_replicas must be an integer >= 0, the engines wanted in all; got {wanted!r}")
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0
        ):
            raise Refused(400, f"timeout_secs must be null or > 0, got {seconds!r}")
        busy = [r for r in self._requests.values() if r.status not in ENDED]
        if busy:
            raise Refused(409, f"{busy[0].direction} {busy[0].request_id} is {busy[0].status}: one at a time")
        return wanted

    def _chosen(self, body: Mapping[str, Any], current: Mapping[str, str]) -> list[str]:
        wanted, urls = self._wanted(body), body.get("engine_urls") or []
        if urls:
            named = {url.rstrip("/"): name for name, url in current.items()}
            unknown = [url for url in urls if str(url).rstrip("/") not in named]
            if unknown:
                raise Refused(404, f"no engine listens on {', '.join(map(str, unknown))}; they are {sorted(named)}")
            return [named[str(url).rstrip("/")] for url in urls]
        if not wanted:
            raise Refused(400, "give num_replicas (the engines that stay) or engine_urls")
        surplus, joined = len(current) - wanted, [name for name in current if name not in self._initial]
        if surplus > len(joined):
            least = len(current) - len(joined)
            raise Refused(400, f"num_replicas {wanted}: the {least} engines that the run started with stay")
        return joined[::-1][:surplus] if surplus > 0 else []

    def _open(self, direction: str, body: Mapping[str, Any], wanted: int) -> ScaleRequest:
        now, request_id = self._wall_time(), uuid.uuid4().hex[:12]
        request = ScaleRequest(
            request_id, direction, "PENDING", body.get("model_name", DEFAULT_MODEL), wanted, now, now
        )
        self._requests[request_id] = request
        return request


def _noop(message: str) -> dict[str, Any]:
    return {"request_id": None, "status": "NOOP", "message": message}


def _pending(request: ScaleRequest, message: str) -> dict[str, Any]:
    return {"request_id": request.request_id, "status": "PENDING", "message": message}
