# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the shell entry points ask of a Ray cluster: waits with an end, a clean-up that ends nobody else's process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax.entrypoints import ray_cluster
from relax.entrypoints.ray_cluster import Waiting, answers, clean, is_alive, own_processes
from relax.utils.errors import ConfigError, InfrastructureError

SLEEPER = "import time; time.sleep(60)"


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waiting = Waiting(lambda: self.seconds, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def node(address: str, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive}


def test_the_head_waits_until_all_machines_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    time, states = Time(), [[node("a")], [node("a"), node("b", alive=False)], [node("a"), node("b")]]
    assert ray_cluster._wait_nodes(lambda: states.pop(0), 2, 60.0, 60.0, time.waiting) == 0
    assert time.seconds == 2 * ray_cluster.POLL_S
    assert "2 of 2 machines have joined: a, b" in capsys.readouterr().err


def test_machines_that_never_come_are_counted_and_named() -> None:
    time = Time()
    with pytest.raises(InfrastructureError, match=r"1 of WORLD_SIZE=3 machines have joined within 5 s \(10.0.0.1\)"):
        ray_cluster._wait_nodes(lambda: [node("10.0.0.1")], 3, 5.0, 5.0, time.waiting)
    assert 5.0 < time.seconds <= 7.0


def test_a_head_that_never_answers_ends_the_wait_in_time() -> None:
    time = Time()
    with socket.socket() as held:  # bound and not listening: every connection is refused
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(InfrastructureError, match=f"no answer from {address} within 3 s: is the head started"):
            ray_cluster.wait_ready(address, 3.0, None, time.waiting)
    assert 3.0 < time.seconds <= 5.0


def test_a_ray_that_ends_while_it_starts_ends_the_wait_at_once() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    time = Time()
    with pytest.raises(InfrastructureError, match="`ray start` ended before"):
        ray_cluster.wait_ready("http://127.0.0.1:1", 60.0, ended.pid, time.waiting)
    assert time.seconds == 0.0


def test_a_worker_whose_head_is_gone_without_any_job_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    time = Time()
    assert ray_cluster.follow_head("http://127.0.0.1:1", None, time.waiting) == 0
    assert time.seconds == ray_cluster.MISSES * ray_cluster.POLL_S
    assert "no job was seen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "refusal"), [("Request failed with status code 401", True), ("status code 500", False)]
)
def test_a_refused_token_is_told_from_a_server_that_starts(text: str, refusal: bool) -> None:
    assert ray_cluster._is_refusal(RuntimeError(text)) == refusal


def test_a_second_ray_on_one_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        file = tmp_path / "ray_current_cluster"
        file.write_text(f"127.0.0.1:{head.getsockname()[1]}\n")
        assert answers(file)
        with pytest.raises(ConfigError, match=r"a Ray cluster runs on this machine already .*ray-job\.sh SCRIPT"):
            ray_cluster.plan(file)
    assert not answers(file)  # of a cluster that was killed the file stays
    assert ray_cluster.plan(file) == 0
    cards, port, token = capsys.readouterr().out.split()[-3:]
    assert (int(cards) >= 1, int(port) > 0, len(token)) == (True, True, 64)


def test_a_taken_dashboard_port_is_replaced_by_a_free_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        monkeypatch.setenv("RAY_DASHBOARD_PORT", str(taken))
        ray_cluster.plan(tmp_path / "none")
    assert int(capsys.readouterr().out.split()[1]) != taken


def test_only_processes_of_ended_jobs_of_this_checkout_are_ended() -> None:
    """Four processes of the same name: what decides is the job and the checkout in their environment."""

    def start(**variables: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SLEEPER], env={**os.environ, **variables})

    left = start(RELAX_JOB="relax-ended", RELAX_CHECKOUT="/here")
    running = start(RELAX_JOB="relax-runs", RELAX_CHECKOUT="/here")
    others = start(RELAX_JOB="relax-ended", RELAX_CHECKOUT="/elsewhere")
    foreign = start()
    started = [left, running, others, foreign]
    try:
        mine = {process.pid for process in started}
        found = [entry for entry in own_processes() if entry.process.pid in mine]
        assert {entry.process.pid for entry in found} == {left.pid, running.pid, others.pid}
        assert clean("/here", {"relax-ended"}, found) == [(left.pid, "relax-ended")]
        assert not psutil.pid_exists(left.pid)
        assert [process.poll() for process in (running, others, foreign)] == [None, None, None]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_process_that_waits_for_its_parent_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet collected
    assert not is_alive(process.pid)
    process.wait()
    assert is_alive(os.getpid())


def test_errors_have_the_exit_codes_of_their_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert ray_cluster.main(["result", "--address", "http://127.0.0.1:1", "relax-1"]) == 5
    assert "so how job relax-1 ended is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    "status",
    [401, 403],  # no token, and a wrong one
)
def test_a_job_server_that_refuses_the_token_is_no_server_that_is_still_starting(status: int) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "12")
            self.end_headers()
            self.wfile.write(b"Unauthorized")

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(ConfigError, match="export the same RAY_AUTH_TOKEN"):
            ray_cluster.jobs_client(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
