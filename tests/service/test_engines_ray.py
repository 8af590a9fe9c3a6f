# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Engine processes that join, die, come back and leave while a run on Ray goes on, asked for over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import psutil
import pytest

from tests.service.training_run import ASYNC, HOOKS, Running, start

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


def call(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    """(status, parsed answer); a refusal is an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def engines(http: str) -> dict[str, dict[str, Any]]:
    rows = call("GET", http + "/rollout/engines")[1]["models"]["default"]["engines"]
    return {row["engine_id"]: row for row in rows}


def scale_rollout(http: str, number: int) -> tuple[int, Any]:
    """The documented curl command, its host name led to the run's own port -> (status, answer)."""
    there = ["--connect-to", f"controller:8000:{http.removeprefix('http://')}", "-s", "-w", "\n%{http_code}"]
    typed = ["-X", "POST", "http://controller:8000/scale_rollout", "-d", json.dumps({"num_rollouts": number})]
    done = subprocess.run(["curl", *there, *typed], capture_output=True, text=True, timeout=120, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


def ended(running: Running, url: str) -> dict[str, Any]:
    """The state of a request once it has one that is final."""
    final = ("ACTIVE", "PARTIAL", "COMPLETED", "FAILED")
    return running.wait_for(lambda: (found := call("GET", url)[1])["status"] in final and found)


def test_engines_join_die_come_back_and_leave_while_training_goes_on(inputs, tmp_path):
    flags = inputs.flags(
        tmp_path / "run", num_rollout=100000, save_interval=1000, custom_rm_path=HOOKS + "slow_reward"
    )
    with start([*flags, *ASYNC, 1, "--use-fault-tolerance"], env={"TEST_REWARD_SECONDS": "0.2"}) as running:
        running.wait_for_event("stepped", 2)
        http = running.http

        (model,) = call("GET", http + "/rollout/v1/models")[1]["data"]
        chat = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 5, "ignore_eos": True}
        status, through_router = call("POST", http + "/rollout/v1/chat/completions", {**chat, "model": model["id"]})
        assert (status, through_router["usage"]["completion_tokens"]) == (200, 5)
        status, direct = call("POST", http + "/rollout/v1/chat/completions", {**chat, "return_token_ids": True})
        assert (status, len(direct["choices"][0]["response_token_ids"])) == (200, 5)
        assert call("POST", http + "/rollout/v1/chat/completions", {"messages": []})[0] == 400
        assert call("GET", http + "/rollout/can_do_update_weight_for_async") == (200, 1)
        assert call("GET", http + "/rollout/status")[1]["paused"] == ["weight update"]
        assert call("GET", http + "/rollout/end_update_weight") == (200, {"status": "ok"})

        status, asked = call("POST", http + "/rollout/scale_out", {"num_replicas": 2})
        assert (status, asked["status"]) == (200, "PENDING")
        assert call("POST", http + "/rollout/scale_in", {"num_replicas": 1})[0] == 409
        request = ended(running, f"{http}/rollout/scale_out/{asked['request_id']}")
        assert (request["status"], request["engine_ids"], request["error_message"]) == ("ACTIVE", ["engine-1"], None)
        assert set(engines(http)) == {"engine-0", "engine-1"}
        assert call("POST", http + "/rollout/scale_out", {"num_replicas": 2})[1]["status"] == "NOOP"
        running.wait_for(lambda: int(engines(http)["engine-1"]["weight_version"]) > request["weight_version"])

        old, joins = running.pid_of("engine-1-process"), len(joined(running))
        os.kill(old, signal.SIGKILL)
        running.wait_for(lambda: len(joined(running)) > joins)
        assert joined(running)[-1]["engine"] == "engine-1"
        running.wait_for(lambda: engines(http).get("engine-1", {}).get("status") == "active")
        assert not psutil.pid_exists(old)

        status, asked = call("POST", http + "/rollout/scale_in", {"num_replicas": 1})
        assert (status, asked["status"]) == (200, "PENDING")
        request = ended(running, f"{http}/rollout/scale_in/{asked['request_id']}")
        assert (request["status"], request["removed_engines"]) == ("COMPLETED", ["engine-1"])
        assert set(engines(http)) == {"engine-0"}
        assert call("POST", http + "/rollout/scale_in", {"engine_urls": [engines(http)["engine-0"]["url"]]})[0] == 400
        assert call("GET", http + "/rollout/scale_in")[1]["requests"] == [request]
        assert call("POST", http + "/rollout/scale_out", {"num_replicaz": 2})[0] == 422

        status, asked = scale_rollout(http, 2)
        assert (status, asked["direction"], asked["status"]) == (200, "scale_out", "PENDING")
        request = ended(running, http + asked["progress"])
        assert (request["status"], request["engine_ids"], request["error_message"]) == ("ACTIVE", ["engine-2"], None)
        status, refused = scale_rollout(http, 1000)
        assert status == 409
        assert "an engine takes 1 slot, and " in refused["detail"]
        stepped = len(events(running, "stepped"))
        status, asked = scale_rollout(http, 1)
        assert (status, asked["direction"], asked["status"]) == (200, "scale_in", "PENDING")
        request = ended(running, http + asked["progress"])
        assert (request["status"], request["removed_engines"]) == ("COMPLETED", ["engine-2"])
        assert scale_rollout(http, 1)[1]["status"] == "NOOP"
        running.wait_for_event("stepped", stepped + 2)  # training was not interrupted

        # the only engine that is left
        joins, stepped = len(joined(running)), len(events(running, "stepped"))
        os.kill(running.pid_of("engine-0-process"), signal.SIGKILL)
        running.wait_for(lambda: len(joined(running)) > joins)
        running.wait_for_event("stepped", stepped + 4)
        running.send(signal.SIGTERM)
        done = running.finish(60)
        assert done.code == 143, done.err
        assert running.wait_gone() == []
    trained = Counter(group for event in done.events("bound") for group in event["groups"])
    assert set(trained.values()) == {1}
    assert max(done.ages()) <= 1
    left = [(event["engine"], event["reason"].split(" ")[0]) for event in done.events("engine_left")]
    assert [name for name, _ in left] == ["engine-1", "engine-1", "engine-2", "engine-0"]


def joined(running: Running) -> list[dict[str, Any]]:
    return events(running, "engine_joined")


def events(running: Running, kind: str) -> list[dict[str, Any]]:
    path = running.folder / "journal" / "driver.jsonl"
    lines = path.read_text().splitlines()[:-1]  # the last one may be half written
    return [line for line in map(json.loads, lines) if line.get("kind") == kind]
