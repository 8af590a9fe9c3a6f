# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The client against a server of its own: values arrive, and a service that is slow or gone costs no time."""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from relax.utils import metrics_client
from relax.utils.metrics_client import MetricsClient


class Service:
    """Keeps what it gets; `hold` makes it wait, `status` refuse."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.may_answer.wait(10)
                service.got.append((self.path, body))
                self.answer()

            def answer(self) -> None:
                self.send_response(service.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.may_answer.set()
    made.server.shutdown()
    made.server.server_close()


def test_values_arrive_with_their_source_and_the_number_that_was_had(service: Service) -> None:
    client = MetricsClient(service.url, source="judge")
    client.log_metric(3, "custom/x", 1.5)
    client.log_metrics_batch(None, {"custom/y/mean": (6.0, 3.0), "custom/z/count": 2.0}, {"node": 1})
    client.report_step(3)
    client.close()
    (first, one), (second, two), third = service.got
    assert first == second == "/metrics/log_metrics_batch"
    assert third == ("/metrics/report_step", {"step": 3})
    assert one.pop("client") == two.pop("client") != ""
    assert one == {"step": 3, "metrics": {"custom/x": 1.5}, "tags": {"source": "judge"}, "sent": 1}
    assert two == {
        "step": None,
        "metrics": {"custom/y/mean": [6.0, 3.0], "custom/z/count": 2.0},
        "tags": {"source": "judge", "node": 1},
        "sent": 3,
    }
    assert (client.lost, client.get_buffered_metrics_count()) == (0, 0)


def test_a_service_that_hangs_costs_rows_and_no_time(service: Service, caplog) -> None:
    service.may_answer.clear()
    client = MetricsClient(service.url, capacity=4)
    begun = time.monotonic()
    for _ in range(50):
        client.log_metric(0, "custom/x/count", 1.0)
    assert time.monotonic() - begun < 1.0
    # one is at the service and four wait, unless the thread has not taken its first yet
    assert client.lost in (45, 46)
    service.may_answer.set()
    client.log_metric(0, "custom/x/count", 1.0)  # finds room once one has gone, or is lost like the others
    client.close()
    assert client.lost + len(service.got) == 51
    assert service.got[-1][1]["sent"] <= 51
    assert "the queue is full" in caplog.text
    assert f"metrics not delivered source=http values={client.lost}" in caplog.text


@pytest.mark.parametrize("status", [409, 422, 429, 500])
def test_what_the_service_refuses_is_lost_and_told(service: Service, status: int, caplog) -> None:
    service.status = status
    client = MetricsClient(service.url)
    client.log_metrics_batch(0, {"custom/x": 1.0, "custom/y": 2.0})
    client.close()
    assert client.lost == 2
    assert f"HTTP {status}" in caplog.text


def test_a_number_that_json_does_not_have_is_lost_and_told(service: Service, caplog) -> None:
    client = MetricsClient(service.url)
    client.log_metric(0, "custom/x", float("nan"))
    client.log_metric(0, "custom/x", 1.0)
    client.close()
    assert (client.lost, len(service.got)) == (1, 1)
    assert service.got[0][1]["sent"] == 2  # so the service knows that one is missing


def test_without_a_service_values_are_counted() -> None:
    client = MetricsClient(None)
    client.log_metrics_batch(0, {"custom/x": 1.0, "custom/y": 2.0})
    client.report_step(0)
    client.close()
    assert (client.lost, client.health_check()) == (2, False)


def test_nobody_listens_and_the_next_ones_do_not_wait_for_it_again(monkeypatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
    client = MetricsClient(url)
    tries: list[Any] = []
    opened = client._open
    monkeypatch.setattr(client, "_open", lambda request: tries.append(request) or opened(request))
    monkeypatch.setattr(metrics_client, "AFTER_FAILURE_S", 60.0)
    for _ in range(20):
        client.log_metric(0, "custom/x", 1.0)
    client.close()
    assert (client.lost, len(tries), client.health_check()) == (20, 1, False)


def test_the_buffer_can_be_cleared(service: Service) -> None:
    service.may_answer.clear()
    client = MetricsClient(service.url)
    for _ in range(10):
        client.log_metric(0, "custom/x/count", 1.0)
    client.clear_buffer()
    assert client.get_buffered_metrics_count() <= 1  # what the thread has in hand
    service.may_answer.set()
    client.close()
    assert client.lost + len(service.got) == 10
    assert client.health_check() is True


def test_another_process_gets_a_sender_of_its_own(service: Service) -> None:
    client = MetricsClient(service.url, source="judge")
    other = pickle.loads(pickle.dumps(client))
    for one in (client, other):
        one.log_metric(0, "custom/x/count", 1.0)
        one.close()
    (_, first), (_, second) = service.got
    assert first["tags"] == second["tags"] == {"source": "judge"}
    assert first["client"] != second["client"]
