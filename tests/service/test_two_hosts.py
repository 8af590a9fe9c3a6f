# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""spmd-multinode.sh on two hosts: a cluster forms, trains with a role on each, and ends; what goes wrong is told."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.hosts import Host, two_hosts, why_not
from tests.service.training_run import ROOT, Finished

pytestmark = [pytest.mark.slow, pytest.mark.service]
SPMD = ROOT / "scripts/entrypoint/spmd-multinode.sh"
SCRIPT = ROOT / "scripts/training/text/run-qwen3-4B-8xgpu-async.sh"
TOKEN = "4f" * 32
SMALL = """
    --num-rollout 2 --rollout-batch-size 2 --n-samples-per-prompt 2 --global-batch-size 4 --rollout-max-response-len 6
    --rollout-num-gpus-per-engine 1 --eval-interval 2 --eval-max-response-len 6 --n-samples-per-eval-prompt 1
    --checkpoint-engine-backend gloo --no-use-tensorboard --serve-port 0
""".split()  # noqa: SIM905
ONE_CARD_EACH = ["--resource", '{"actor": [1, 1], "rollout": [1, 1], "advantages": [1, 0]}']
WITHOUT = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RELAX_ENTRYPOINT", "MODEL_DIR")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as made:
        yield made


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The same variables on both hosts, as a launcher sets them, and a tiny model and data in their places."""
    rows = [
        {"prompt": [{"role": "user", "content": f"{a} + {b}?"}], "label": str(a + b)}
        for a in range(4)
        for b in range(4)
    ]
    for file in ("dapo-math-17k/dapo-math-17k.jsonl", "aime-2024/aime-2024.jsonl"):
        (tmp_path / file).parent.mkdir()
        write_jsonl(tmp_path / file, rows)
    build_tiny_model_folder(tmp_path / "Qwen3-4B")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "qwen3-4B.sh").write_text("MODEL_ARGS=(--swiglu)\n")
    kept = {name: value for name, value in os.environ.items() if name not in WITHOUT}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "EXP_DIR": str(tmp_path),
        "MODEL_CONFIG_DIR": str(tmp_path / "models"),
        "MASTER_ADDR": "node-0",
        "WORLD_SIZE": "2",
        "NUM_GPUS": "1",
        "RAY_AUTH_TOKEN": TOKEN,
    }


@contextlib.contextmanager
def running(host: Host, log: Path, env: Mapping[str, str], *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same command on every host; whatever the test finds, it is ended by its own group."""
    process = host.start(["bash", SPMD, SCRIPT, *SMALL, *ONE_CARD_EACH, *flags], log, env)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(40)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def left_over(folder: Path) -> list[str]:
    """Processes that name the hosts' folder or have a file below it open."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            if str(folder) in " ".join(process.info["cmdline"] or ()):
                found.append(f"{process.pid} {process.info['cmdline'][:3]}")
    return found


def test_two_hosts_train_with_a_role_on_each_and_leave_nothing(
    hosts: tuple[Host, Host], env: dict[str, str], tmp_path: Path
) -> None:
    head_log, worker_log = tmp_path / "head.log", tmp_path / "worker.log"
    with running(hosts[1], worker_log, env) as worker, running(hosts[0], head_log, env) as head:
        code = head.wait(400)
        text = head_log.read_text(errors="replace")
        assert code == 0, text[-5000:]
        assert worker.wait(60) == 0, worker_log.read_text(errors="replace")[-3000:]
    assert "2 of 2 machines have joined: 10.77.0.1, 10.77.0.2" in text
    assert "step 2/2" in text
    assert "has ended: SUCCEEDED" in worker_log.read_text()
    run = Finished(tmp_path / "relax-text" / "qwen3-4B-async", 0, text, "")
    assert run.reason == "finished"
    engine = re.search(r"native engine ready host=(\S+)", run.log("engine-0-process"))
    assert engine is not None
    assert engine[1] in ("10.77.0.1", "10.77.0.2")  # and the actor on the other host, for each has one card
    assert [event["version"] for event in run.events("installed")] == [1, 2]  # engines start with the files' weights
    end = time.monotonic() + 20
    while (left := left_over(hosts[0].folder)) and time.monotonic() < end:
        time.sleep(0.5)
    assert not left


def test_a_head_that_never_comes_is_told_in_time(
    hosts: tuple[Host, Host], env: dict[str, str], tmp_path: Path
) -> None:
    start = time.monotonic()
    with running(hosts[1], tmp_path / "log", {**env, "HEAD_TIMEOUT_S": "4"}) as worker:
        assert worker.wait(60) == 5
    assert "no answer from http://node-0:8265 within 4 s: is the head started" in (tmp_path / "log").read_text()
    assert time.monotonic() - start < 40


def test_a_worker_without_the_token_and_workers_that_never_come_are_told(
    hosts: tuple[Host, Host], env: dict[str, str], tmp_path: Path
) -> None:
    head_log, worker_log = tmp_path / "head.log", tmp_path / "worker.log"
    without = {name: value for name, value in env.items() if name != "RAY_AUTH_TOKEN"}
    with (
        running(hosts[0], head_log, {**env, "JOIN_TIMEOUT_S": "30"}) as head,
        running(hosts[1], worker_log, without) as worker,
    ):
        assert worker.wait(120) == 2, worker_log.read_text()
        assert head.wait(120) == 5, head_log.read_text()
    assert "asks for a token that this machine does not have: export the same RAY_AUTH_TOKEN" in worker_log.read_text()
    assert "1 of WORLD_SIZE=2 machines have joined within 30 s (10.77.0.1)" in head_log.read_text()
