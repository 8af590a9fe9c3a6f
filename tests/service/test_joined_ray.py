# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`ray start --head`, then the training command: it joins that cluster, runs there, and leaves it as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.service.training_run import Inputs, start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.service,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]
ROLES = ("actor-0", "rollout", "engine-0", "controller", "router")


@dataclass
class Head:
    """A cluster that `ray start --head` has started, without a word on GPUs, CPUs or resources."""

    folder: Path  # Ray's own: sessions and the address of the cluster
    env: dict[str, str]

    def answers(self) -> bool:
        host, _, port = (self.folder / "ray_current_cluster").read_text().rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    base = Path(f"/var/tmp/rlxh-{os.getpid()}")  # short, because socket paths have a limit
    base.mkdir()
    env = {"RAY_TMPDIR": str(base), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    # what is typed is `ray start --head`; the rest keeps it to this machine and to free ports
    words = ["start", "--head", "--block", "--port=0", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    with open(base / "start.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            env={**os.environ, **env, "RAY_ADDRESS": ""}, stdout=log, stderr=log, cwd="/", start_new_session=True,
        )  # fmt: skip
    found = Head(base / "ray", env)
    try:
        end = time.monotonic() + 180
        while not ((found.folder / "ray_current_cluster").exists() and found.answers()):
            assert process.poll() is None and time.monotonic() < end, (base / "start.log").read_text()
            time.sleep(0.5)
        yield found
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(base, ignore_errors=True)


def tail(folder: Path) -> dict[str, str]:
    """What `tail /tmp/ray/session_latest/logs/serve/*.log` reads, Ray's folder being `folder`: {log: text}."""
    done = subprocess.run(
        f"tail -v -n +1 {folder}/session_latest/logs/serve/*.log",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("==> ")[1:]
    return {Path(name).name: text.strip() for name, _, text in (part.partition(" <==\n") for part in parts)}


def test_a_run_joins_the_cluster_that_ray_start_has_started_and_leaves_it_there(
    head: Head, inputs: Inputs, tmp_path: Path
) -> None:
    for name in ("first", "second"):  # the cluster is as good for the next run as it was for the first
        with start(inputs.flags(tmp_path / name), env=head.env) as running:
            done = running.finish().ok()
            assert running.wait_gone() == []
            assert running.temporary() == []  # no private cluster was started
        assert len(done.events("stepped")) == 2
        assert head.answers()
    logs = tail(head.folder)
    assert {f"relax-{role}.log" for role in ROLES} <= set(logs)
    assert {name for name in logs if not name.startswith("relax-")}  # Ray Serve's own
    assert logs["relax-rollout.log"] == done.log("rollout").strip() != ""


def test_the_roles_logs_of_a_private_run_are_where_ray_has_its_own(inputs: Inputs, tmp_path: Path) -> None:
    """Also after the run, whose cluster is gone: a deployment that failed is looked at afterwards."""
    base = Path(f"/var/tmp/rlxl-{os.getpid()}")
    base.mkdir()
    try:
        with start(inputs.flags(tmp_path / "run"), env={"RAY_TMPDIR": str(base)}) as running:
            running.wait_for_event("stepped")
            assert {f"relax-{role}.log" for role in ROLES} <= set(tail(base / "ray"))
            done = running.finish().ok()
        logs = tail(base / "ray")
        assert logs["relax-rollout.log"] == done.log("rollout").strip() != ""
        assert logs["relax-controller.log"] == done.log("controller").strip() != ""
    finally:
        shutil.rmtree(base, ignore_errors=True)
