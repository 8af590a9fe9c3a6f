# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A private cluster whose processes start slowly is tried once more; any other failure is told at once."""

import os
import socket
from types import SimpleNamespace

import pytest

from relax.distributed.ray import cluster
from relax.utils.errors import InfrastructureError

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


@pytest.fixture
def starts(monkeypatch):
    """Errors of the coming starts in order; None is a start that succeeds."""
    import ray

    planned, calls = [], []

    def start(*_):
        calls.append("init")
        error = planned.pop(0)
        if error is not None:
            raise error
        return SimpleNamespace(address_info={"gcs_address": "127.0.0.1:1"})

    monkeypatch.setattr(cluster, "_init_private", start)
    monkeypatch.setattr(cluster, "_this_node", lambda: ("node:127.0.0.1", {}))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 0.0})
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    planned_calls = SimpleNamespace(planned=planned, calls=calls)
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("RAY_AUTH_MODE", raising=False)
        environment.delenv("RAY_AUTH_TOKEN", raising=False)
        yield planned_calls


def start():
    found = cluster._start_private("test", 1, False, {})
    found.folder.close()
    return found


def test_a_slow_start_is_tried_once_more(starts):
    starts.planned += [RuntimeError(SLOW), None]
    assert start().address == "127.0.0.1:1"
    assert starts.calls == ["init", "shutdown", "init"]


def test_a_second_slow_start_ends_the_run(starts):
    starts.planned += [RuntimeError(SLOW), RuntimeError(SLOW)]
    with pytest.raises(InfrastructureError, match="timed out during startup"):
        start()
    assert starts.calls == ["init", "shutdown", "init", "shutdown"]


def test_another_failure_is_told_at_once(starts):
    starts.planned += [ValueError("no such option")]
    with pytest.raises(InfrastructureError, match="no such option"):
        start()
    assert starts.calls == ["init", "shutdown"]


def test_a_private_cluster_asks_for_a_token_of_its_own(starts, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    starts.planned += [None]
    cluster.connect(namespace="test", slots=1, dashboard=False, env={}).folder.close()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64  # 256 random bits


def test_a_choice_of_the_user_stays(starts, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    starts.planned += [None]
    cluster.connect(namespace="test", slots=1, dashboard=False, env={}).folder.close()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.parametrize("text", ["127.0.0.1:{port}", "", "nonsense", "[::1]:{port}"])
def test_the_file_of_a_cluster_that_is_gone_counts_for_nothing(tmp_path, text):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers
        path = tmp_path / "ray_current_cluster"
        path.write_text(text.format(port=held.getsockname()[1]))
        assert not cluster._answers(path)
        held.listen()
        assert cluster._answers(path) is text.startswith("127")
    assert not cluster._answers(tmp_path / "absent")
