# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The metrics service from HTTP to rows and back, without Ray: door, board, link and collector."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from relax.core import metrics_board, metrics_link
from relax.core.metrics_board import Board, Full
from relax.core.metrics_door import build_metrics_routes
from relax.core.metrics_link import MetricsLink
from relax.schedule.clock import RealClock, run_virtual
from relax.utils.errors import MetricConflict
from relax.utils.metric_collector import Collector
from relax.utils.metrics import MemorySink, Row

RUN_FACTS = {"client": "", "sent": None}


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def client(board: Board) -> TestClient:
    app = FastAPI()
    app.include_router(build_metrics_routes(lambda: board), prefix="/metrics")
    return TestClient(app, base_url="http://test/metrics")


def messages(board: Board) -> list[dict[str, Any]]:
    return [message for _, message in asyncio.run(board.take(board.incarnation, 0, 0.0))[1]]


def show(board: Board, *rows: tuple[int, dict[str, float]]) -> None:
    board.show(board.incarnation, 0, rows)


# ------------------------------------------------------------------ reports over HTTP


def test_documented_routes_take_reports_for_the_collector(client: TestClient, board: Board) -> None:
    body = {"step": 3, "metric_name": "custom/x", "metric_value": 1.5, "tags": {"source": "judge", "node": 2}}
    assert client.post("/log_metric", json=body).json() == {"status": "ok"}
    body = {"step": None, "metrics": {"custom/y/mean": [6, 3], "custom/z/count": 2}, "client": "p1", "sent": 9}
    assert client.post("/log_metrics_batch", json=body).json() == {"status": "ok"}
    assert client.post("/report_step", json={"step": 3}).json() == {"status": "ok"}
    assert client.post("/clear_metrics", json={}).json() == {"status": "ok"}
    error = {"error_message": "lost a tool", "error_traceback": "line 1"}
    assert client.post("/log_error", json=error).json() == {"status": "ok"}
    assert messages(board) == [
        {"report": {"source": "judge", "values": {"custom/x": (1.5, 1.0)}, "step": 3}},
        {
            "report": {
                "source": "http",
                "values": {"custom/y/mean": (6.0, 3.0), "custom/z/count": (2.0, 1.0)},
                "step": None,
                "client": "p1",
                "sent": 9,
            }
        },
        {"write_late": 3},
        {"clear": None},
        {"error": error},
    ]
    assert client.get("/health").json() == {
        "status": "ok",
        "latest_step": None,
        "waiting": 5,
        "refused": 0,
        "missing_rows": 0,
        "errors": [error],
    }


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/log_metric", {"step": 0, "metric_name": "rollout/rewrad", "metric_value": 1}, "custom/NAME"),
        ("/log_metric", {"step": 0, "metric_name": "custom/x", "metric_value": [1, 1]}, "is for a mean"),
        ("/log_metric", {"step": 0, "metric_name": "custom/x/mean", "metric_value": [1, -1]}, "count >= 0"),
        ("/log_metric", {"step": -1, "metric_name": "custom/x", "metric_value": 1}, "step"),
        ("/log_metric", {"step": 0, "metric_name": "custom/x", "metric_value": "many"}, "metric_value"),
        ("/log_metric", {"step": 0, "metric_name": "custom/x", "metric_value": 1, "tag": {}}, "extra_forbidden"),
        ("/log_metrics_batch", {"step": 0, "metrics": {f"custom/{i}": 1 for i in range(1001)}}, "1000"),
        ("/report_step", {}, "step"),
    ],
)
def test_a_wrong_report_is_refused_with_what_is_wrong(client, board, path, body, told) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert told in answer.text
    assert board.waiting == 0


def test_a_second_value_of_a_gauge_is_a_conflict_unless_it_is_the_owners(client: TestClient, board: Board) -> None:
    def post(source: str, value: float, name: str = "custom/x", step: int = 1) -> int:
        body = {"step": step, "metric_name": name, "metric_value": value, "tags": {"source": source}}
        return client.post("/log_metric", json=body).status_code

    assert [post("a", 1.0), post("a", 2.0), post("b", 2.0), post("b", 3.0)] == [200, 200, 200, 409]
    show(board, (1, {"train/lr": 0.5, "custom/x": 2.0}))
    assert post("a", 1.0, "train/lr") == 409  # the run's own
    assert post("a", 4.0) == 200  # the owner may go on
    assert post("a", 1.0, "train/lr", step=2) == 200
    assert client.post("/clear_metrics", json={"step": 1}).status_code == 200
    assert post("b", 3.0, step=1) == 409  # in a written row
    assert board.waiting == 6


def test_a_full_board_refuses_at_once_and_counts(client: TestClient, board: Board, monkeypatch) -> None:
    monkeypatch.setattr(metrics_board, "WAITING", 2)
    codes = [client.post("/report_step", json={"step": step}).status_code for step in range(4)]
    assert codes == [200, 200, 429, 429]
    assert client.get("/health").json()["refused"] == 2


def test_the_door_imports_neither_torch_nor_ray_nor_transformers() -> None:
    code = (
        "import sys, relax.core.metrics_door as d; d.build_metrics_routes(); "
        "print([name for name in ('torch', 'ray', 'transformers', 'numpy') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# ------------------------------------------------------------------ queries


def test_the_newest_step_and_the_newest_evaluation(client: TestClient, board: Board) -> None:
    assert client.get("/latest").status_code == 404
    show(
        board,
        (4, {"train/loss": 0.5, "train/grad_norm": float("nan")}),
        (3, {"custom/late": 1.0}),
        (4, {"custom/x": 2.0}),
        (5, {"eval/toys/reward/mean": 0.25, "perf/eval_s": 1.0}),
    )
    assert client.get("/latest").json() == {
        "training": {"step": 4, "metrics": {"train/loss": 0.5, "train/grad_norm": "nan", "custom/x": 2.0}},
        "evaluation": {"step": 5, "metrics": {"eval/toys/reward/mean": 0.25, "perf/eval_s": 1.0}},
    }
    assert client.get("/health").json()["latest_step"] == 4


def test_a_range_of_steps_of_named_metrics(client: TestClient, board: Board) -> None:
    show(board, *((step, {"train/loss": step / 2, "train/lr": 1.0}) for step in range(5)))
    answer = client.get("/query_metrics", params={"name": ["train/loss", "train/entropy"], "first": 1, "last": 3})
    assert answer.json() == {
        "metrics": {"train/loss": [[1, 0.5], [2, 1.0], [3, 1.5]], "train/entropy": []},
        "first_kept": 0,
        "missing_rows": 0,
    }
    assert set(client.get("/query_metrics").json()["metrics"]) == {"train/loss", "train/lr"}
    assert client.get("/query_metrics?name=train/lost").status_code == 422


def test_prometheus_reads_the_page_at_both_addresses(client: TestClient, board: Board) -> None:
    show(board, (7, {"train/loss": 0.5, "perf/wait_s/actor": 2.0}), (6, {"eval/toys/reward/mean": 0.25}))
    for path in ("", "/"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = {
            sample.name: (sample.labels, sample.value)
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        assert found == {
            "relax_train_loss": ({}, 0.5),
            "relax_perf_wait_s": ({"role": "actor"}, 2.0),
            "relax_eval_reward_mean": ({"dataset": "toys"}, 0.25),
            "relax_metrics_missing_rows": ({}, 0.0),
            "relax_step": ({}, 7.0),
            "relax_eval_step": ({}, 6.0),
        }


def test_a_board_keeps_the_newest_rows_and_says_from_where(client, board, monkeypatch) -> None:
    monkeypatch.setattr(metrics_board, "KEPT_ROWS", 3)
    show(board, *((step, {"train/loss": 1.0}) for step in range(5)))
    answer = client.get("/query_metrics?name=train/loss").json()
    assert (answer["metrics"]["train/loss"], answer["first_kept"]) == ([[2, 1.0], [3, 1.0], [4, 1.0]], 2)


# ------------------------------------------------------------------ numbered on both ways


def test_repeated_rows_count_once_and_a_gap_is_told(board: Board) -> None:
    one, two = (0, {"train/loss": 1.0}), (1, {"train/loss": 2.0})
    assert board.show("", 0, [one]) == (board.incarnation, 0)  # not introduced yet: nothing is taken
    assert board.latest() is None
    assert board.show(board.incarnation, 0, [one])[1] == 1
    assert board.show(board.incarnation, 0, [one, two])[1] == 2  # the answer to the first call was lost
    assert board.missing_rows == 0
    assert board.show(board.incarnation, 5, [(5, {"train/loss": 3.0})])[1] == 6
    assert board.missing_rows == 3


async def test_messages_stay_until_they_are_acknowledged_to_the_same_board(board: Board) -> None:
    for step in (0, 1):
        board.put({"write_late": step})
    for _ in range(2):  # the answer to the first call was lost
        assert [n for n, _ in (await board.take(board.incarnation, 0, 0.0))[1]] == [1, 2]
    assert [n for n, _ in (await board.take("another", 7, 0.0))[1]] == [1, 2]
    assert [n for n, _ in (await board.take(board.incarnation, 1, 0.0))[1]] == [2]
    assert (await board.take(board.incarnation, 2, 0.0))[1] == []


async def test_a_waiting_call_is_answered_when_something_comes(board: Board) -> None:
    call = asyncio.create_task(board.take(board.incarnation, 0, 60.0))
    await asyncio.sleep(0)
    board.put({"write_late": 1})
    assert (await asyncio.wait_for(call, 5.0))[1] == [(1, {"write_late": 1})]


# ------------------------------------------------------------------ the link


class Door:
    """The door's process: may be started again, fail, or never answer."""

    def __init__(self) -> None:
        self.board = Board()
        self.fails = 0
        self.hangs = False
        self.calls = 0

    async def _trouble(self) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            self.fails -= 1
            raise ConnectionError("gone")

    async def show_metrics(self, board: str, first: int, rows: Sequence[Any]) -> Any:
        await self._trouble()
        return self.board.show(board, first, rows)

    async def take_reports(self, board: str, after: int, wait_s: float) -> Any:
        await self._trouble()
        return await self.board.take(board, after, wait_s)


def report(board: Board, step: int | None, value: float) -> None:
    board.report({"source": "t", "values": {"custom/x/count": (value, 1.0)}, "step": step, **RUN_FACTS})


def loss(value: float) -> Row:
    row = Row()
    row.add("train/loss", value)
    return row


@asynccontextmanager
async def linked(door: Door) -> AsyncIterator[tuple[Collector, MemorySink, MetricsLink]]:
    sink = MemorySink()
    collector = Collector([sink])
    link = MetricsLink(collector, door, RealClock())
    running = asyncio.create_task(link.run())
    try:
        yield collector, sink, link
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def test_reports_reach_the_row_of_their_step_and_rows_reach_the_board() -> None:
    async def scenario() -> None:
        door = Door()
        async with linked(door) as (collector, sink, _):
            report(door.board, 0, 2.0)
            await asyncio.sleep(1.0)
            collector.write(0, loss(0.5))
            await asyncio.sleep(1.0)
            assert sink.rows == [(0, {"train/loss": 0.5, "custom/x/count": 2.0})]
            assert door.board.latest() == sink.rows[0]
            report(door.board, 0, 3.0)  # late
            door.board.put({"write_late": 0})
            await asyncio.sleep(1.0)
            assert sink.rows[1:] == [(0, {"custom/x/count": 5.0})]
            assert door.board.latest() == (0, {"train/loss": 0.5, "custom/x/count": 5.0})

    run_virtual(scenario())


def test_a_door_that_is_started_again_gets_the_rows_and_gives_its_reports_once() -> None:
    async def scenario() -> None:
        door = Door()
        async with linked(door) as (collector, sink, _):
            report(door.board, 0, 1.0)
            await asyncio.sleep(1.0)
            for step in range(3):
                collector.write(step, loss(step))
            await asyncio.sleep(1.0)
            door.board = Board()
            report(door.board, 3, 1.0)  # numbered 1, like the first board's
            await asyncio.sleep(15.0)  # a long poll at the old board ends
            assert door.board.series("train/loss", 0, None) == [(0, 0.0), (1, 1.0), (2, 2.0)]
            assert door.board.missing_rows == 0
            collector.write(3, loss(3.0))
            assert sink.series("custom/x/count") == [1.0, 1.0]

    run_virtual(scenario())


def test_a_door_that_does_not_answer_costs_no_time_and_is_told_rarely(caplog) -> None:
    async def scenario() -> None:
        door = Door()
        door.hangs = True
        async with linked(door) as (collector, sink, link):
            begun = asyncio.get_running_loop().time()
            for step in range(metrics_link.KEPT_ROWS + 10):
                collector.write(step, loss(1.0))
            assert asyncio.get_running_loop().time() == begun
            await asyncio.sleep(600.0)
            assert door.calls < 100
            assert len(caplog.records) < 14
            door.hangs = False
            await asyncio.sleep(60.0)
            assert door.board.missing_rows == 10  # the oldest, which nobody kept for it
            assert len(sink.rows) == metrics_link.KEPT_ROWS + 10  # metrics.jsonl has all of them
            report(door.board, 5000, 1.0)
            door.hangs = True
        begun = asyncio.get_running_loop().time()
        await link.finish()
        assert asyncio.get_running_loop().time() - begun <= metrics_link.LAST_CALL_S

    with caplog.at_level(logging.WARNING):
        run_virtual(scenario())
    assert "the metrics door does not answer" in caplog.text
    assert "not asked for its last reports" in caplog.text


def test_a_flood_of_reports_comes_in_bounded_portions() -> None:
    async def scenario() -> None:
        door = Door()
        async with linked(door) as (collector, _, _):
            with suppress(Full):
                while True:
                    report(door.board, None, 1.0)
            await asyncio.sleep(1.01)
            # a fetch each quarter of a second: 5 in the first one
            assert collector.write(0, loss(1.0))["custom/x/count"] <= 5 * metrics_board.ONE_FETCH
            await asyncio.sleep(60.0)
            assert collector.write(1, loss(1.0))["custom/x/count"] >= metrics_board.WAITING - 5 * 256

    run_virtual(scenario())


def test_reported_errors_and_last_reports_arrive(caplog) -> None:
    async def scenario() -> None:
        door = Door()
        async with linked(door) as (collector, sink, link):
            await asyncio.sleep(1.0)
        door.board.put({"error": {"error_message": "lost a tool", "error_traceback": "line 1"}})
        collector.write(0, loss(1.0))
        report(door.board, 0, 4.0)
        await link.finish()
        collector.close()
        assert sink.rows[-1] == (0, {"custom/x/count": 4.0})

    run_virtual(scenario())
    assert "reported: lost a tool" in caplog.text


def test_a_conflict_is_an_error_where_it_is_made(board: Board) -> None:
    facts = {"step": 0, "client": "", "sent": None}
    board.report({"source": "a", "values": {"custom/x": (1.0, 1.0)}, **facts})
    with pytest.raises(MetricConflict, match=r"custom/x of step 0 is 1 by a, and 2 by b"):
        board.report({"source": "b", "values": {"custom/x": (2.0, 1.0)}, **facts})
