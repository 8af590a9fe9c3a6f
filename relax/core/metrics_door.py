# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""HTTP routes of the metrics service, below /metrics in the `control` door. No torch, no Ray.

POST /log_metric, /log_metrics_batch     report values of a step          GET /latest          the newest step
POST /report_step                        write what came late             GET /query_metrics   metrics over steps
POST /clear_metrics                      forget what is not written       GET /health          what waits, what is lost
POST /log_error                          tell the run's log               GET /                Prometheus text

A wrong report is answered with 422 (body, undeclared name), 409 (another source's value is there) or 429 (full).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt

from relax.core.metrics_board import Board, Full
from relax.utils.errors import InternalError, MetricConflict
from relax.utils.metric_collector import EVAL, TRAIN
from relax.utils.metrics import find_spec
from relax.utils.prometheus import CONTENT_TYPE, page

MAX_BATCH = 1000
MAX_TEXT = 10_000
Name = Annotated[str, Field(max_length=200)]
Value = FiniteFloat | tuple[FiniteFloat, FiniteFloat]  # a measurement, or (sum, count) of several


class Tagged(BaseModel):
    """`tags.source` says who reports; the rest of the tags is not kept."""

    model_config = ConfigDict(extra="forbid")

    step: NonNegativeInt | None = None  # null: the step that is written next
    tags: dict[str, Any] = Field(default_factory=dict)


class LogMetric(Tagged):
    """Body of POST /log_metric."""

    metric_name: Name
    metric_value: Value


class LogMetrics(Tagged):
    """Body of POST /log_metrics_batch. `client` and `sent` tell what did not arrive."""

    metrics: dict[Name, Value] = Field(max_length=MAX_BATCH)
    client: str = Field(default="", max_length=200)
    sent: NonNegativeInt | None = None


class ReportStep(BaseModel):
    """Body of POST /report_step."""

    model_config = ConfigDict(extra="forbid")

    step: NonNegativeInt


class ClearMetrics(BaseModel):
    """Body of POST /clear_metrics."""

    model_config = ConfigDict(extra="forbid")

    step: NonNegativeInt | None = None


class LogError(BaseModel):
    """Body of POST /log_error."""

    model_config = ConfigDict(extra="forbid")

    error_message: str = Field(max_length=MAX_TEXT)
    error_traceback: str = Field(default="", max_length=MAX_TEXT)


@functools.cache
def process_board() -> Board:
    """The one board of a door's process: Serve copies an application and its class one by one."""
    return Board()


def build_metrics_routes(board: Callable[[], Board] = process_board) -> APIRouter:
    """A router to mount under the service's prefix (`/metrics`)."""
    router = APIRouter()
    _add_report_routes(router, board)
    _add_query_routes(router, board)
    return router


def _add_report_routes(router: APIRouter, board: Callable[[], Board]) -> None:
    @router.post("/log_metric")
    async def log_metric(body: LogMetric) -> dict[str, str]:
        with _refusals():
            board().report(_report(body, {body.metric_name: body.metric_value}))
        return {"status": "ok"}

    @router.post("/log_metrics_batch")
    async def log_metrics_batch(body: LogMetrics) -> dict[str, str]:
        with _refusals():
            board().report(_report(body, body.metrics) | {"client": body.client, "sent": body.sent})
        return {"status": "ok"}

    @router.post("/report_step")
    async def report_step(body: ReportStep) -> dict[str, str]:
        """Write what came for this step after its row, without waiting for the next row."""
        with _refusals():
            board().put({"write_late": body.step})
        return {"status": "ok"}

    @router.post("/clear_metrics")
    async def clear_metrics(body: ClearMetrics) -> dict[str, str]:
        with _refusals():
            board().clear(body.step)
        return {"status": "ok"}

    @router.post("/log_error")
    async def log_error(body: LogError) -> dict[str, str]:
        with _refusals():
            board().put({"error": body.model_dump()})
        board().errors.append(body.model_dump())
        return {"status": "ok"}


def _report(body: Tagged, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Report`; raises for a name or a value that the table does not allow."""
    pairs = {}
    for name, value in values.items():
        kind = find_spec(name).kind
        if isinstance(value, tuple) and (kind != "mean" or value[1] < 0):
            raise HTTPException(422, f"{name}: a pair (sum, count) with count >= 0 is for a mean, got {value}")
        pairs[name] = value if isinstance(value, tuple) else (value, 1.0)
    return {"source": str(body.tags.get("source", "http"))[:200], "values": pairs, "step": body.step}


def _add_query_routes(router: APIRouter, board: Callable[[], Board]) -> None:
    @router.get("/latest")
    async def latest() -> dict[str, Any]:
        """The newest finished step, and the newest evaluation."""
        found = {kind: board().latest(kind) for kind in (TRAIN, EVAL)}
        if found[TRAIN] is None and found[EVAL] is None:
            raise HTTPException(404, "no step is finished yet")
        return {name: _told(found[kind]) for name, kind in (("training", TRAIN), ("evaluation", EVAL))}

    @router.get("/query_metrics")
    async def query_metrics(
        name: Annotated[list[str] | None, Query()] = None,
        first: Annotated[int, Query(ge=0)] = 0,
        last: Annotated[int | None, Query(ge=0)] = None,
    ) -> dict[str, Any]:
        """[[step, value], ...] of each metric `name` (all, without one) over the steps `first` ... `last`."""
        with _refusals():
            for one in name or ():
                find_spec(one)
        asked = board().names() if name is None else name
        series = {one: [(s, _json(v)) for s, v in board().series(one, first, last)] for one in asked}
        return {"metrics": series, "first_kept": board().oldest(), "missing_rows": board().missing_rows}

    @router.get("/health")
    async def health() -> dict[str, Any]:
        newest = board().latest()
        return {
            "status": "ok",
            "latest_step": newest and newest[0],
            "waiting": board().waiting,
            "refused": board().refused,
            "missing_rows": board().missing_rows,
            "errors": list(board().errors),
        }

    @router.get("/")
    async def prometheus() -> PlainTextResponse:
        newest, evaluation = board().latest(), board().latest(EVAL)
        values = {**(newest[1] if newest else {}), **(evaluation[1] if evaluation else {})}
        own = {"relax_metrics_missing_rows": ("rows that the metrics service never got", board().missing_rows)}
        if newest:
            own["relax_step"] = ("newest finished step", newest[0])
        if evaluation:
            own["relax_eval_step"] = ("newest evaluated weight version", evaluation[0])
        return PlainTextResponse(page(values, own), media_type=CONTENT_TYPE)

    router.add_api_route("", prometheus, methods=["GET"], include_in_schema=False)


def _told(row: tuple[int, dict[str, float]] | None) -> dict[str, Any] | None:
    return row and {"step": row[0], "metrics": {name: _json(value) for name, value in row[1].items()}}


def _json(value: float) -> float | str:
    """JSON has no NaN or infinity: they are the strings that metrics.jsonl has."""
    return value if math.isfinite(value) else str(value)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what a board refuses into HTTP answers."""
    try:
        yield
    except MetricConflict as error:
        raise HTTPException(409, str(error)) from error
    except InternalError as error:  # an undeclared name
        raise HTTPException(
            422, f"{error}; your own metrics are custom/NAME, custom/NAME/mean, /max or /count"
        ) from error
    except Full as error:
        raise HTTPException(429, str(error)) from error
