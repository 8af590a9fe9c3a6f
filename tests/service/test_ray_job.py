# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""ray-job.sh on a Ray cluster that somebody else has started: it trains there and ends only what it started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from relax.entrypoints.ray_cluster import free_port, jobs_client
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.test_two_hosts import ONE_CARD_EACH, SMALL
from tests.service.training_run import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.service]

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
SCRIPT = ROOT / "scripts/training/text/run-qwen3-4B-8xgpu-async.sh"
WITHOUT = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RELAX_ENTRYPOINT", "RELAX_JOB_ADDRESS")
SLEEPER = "import time; time.sleep(900)"


@dataclass
class Foreign:
    """A cluster of somebody else, and an environment in which its job server is known."""

    head: subprocess.Popen[bytes]
    address: str
    env: dict[str, str]

    def submit(self, *words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(ROOT / "scripts/entrypoint/ray-job.sh"), *map(str, words)]
        return subprocess.run(
            command, env={**self.env, **(env or {})}, capture_output=True, text=True, timeout=300, cwd=ROOT
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    folder = tmp_path_factory.mktemp("exp")
    rows = [{"prompt": [{"role": "user", "content": f"{a} + 1?"}], "label": str(a + 1)} for a in range(8)]
    for file in ("dapo-math-17k/dapo-math-17k.jsonl", "aime-2024/aime-2024.jsonl"):
        (folder / file).parent.mkdir()
        write_jsonl(folder / file, rows)
    build_tiny_model_folder(folder / "Qwen3-4B")
    (folder / "models").mkdir()
    (folder / "models/qwen3-4B.sh").write_text("MODEL_ARGS=(--swiglu)\n")
    (ray_folder := Path(f"/var/tmp/rlxj-{os.getpid()}")).mkdir()
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if name not in WITHOUT}
    env = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": str(ray_folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "EXP_DIR": str(folder),
        "MODEL_CONFIG_DIR": str(folder / "models"),
        "RAY_ADDRESS": f"http://127.0.0.1:{port}",  # as a user exports it; Ray itself refuses it
    }
    options = f"""
        --head --block --port=0 --node-ip-address=127.0.0.1 --num-cpus=16 --num-gpus=0 --include-dashboard=true
        --dashboard-host=127.0.0.1 --dashboard-port={port}
    """.split()
    with open(ray_folder / "start.log", "wb") as log:
        start_env = {name: value for name, value in env.items() if name != "RAY_ADDRESS"}
        head = subprocess.Popen(
            [*RAY, "start", *options, '--resources={"slot": 4}'],
            env=start_env, stdout=log, stderr=log, cwd="/", start_new_session=True,
        )  # fmt: skip
    try:
        end = time.monotonic() + 180
        while jobs_client(env["RAY_ADDRESS"]) is None:
            assert head.poll() is None and time.monotonic() < end, (ray_folder / "start.log").read_text()
            time.sleep(1)
        yield Foreign(head, env["RAY_ADDRESS"], env)
    finally:
        head.terminate()
        try:
            head.wait(60)
        finally:
            with_group(head)
            shutil.rmtree(ray_folder, ignore_errors=True)


def with_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_it_trains_on_the_cluster_and_leaves_it_and_everybody_else_alone(cluster: Foreign) -> None:
    """Before: a process of an ended job of this checkout, and one of the same name that is nobody's."""
    job = "relax-ended-before"
    client = jobs_client(cluster.address)
    assert client is not None
    client.submit_job(entrypoint="true", submission_id=job)
    while not client.get_job_status(job).is_terminal():
        time.sleep(0.5)
    mark = {"RELAX_JOB": job, "RELAX_CHECKOUT": str(ROOT)}
    left = subprocess.Popen([sys.executable, "-c", SLEEPER], env={**os.environ, **mark})
    foreign = subprocess.Popen([sys.executable, "-c", SLEEPER])
    try:
        done = cluster.submit(SCRIPT, *SMALL, *ONE_CARD_EACH)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "step 2/2" in done.stdout
        assert f"ended process {left.pid}, left over from job {job}" in done.stderr
        told = re.search(r"Ray cluster with the head (\S+), job server", done.stderr)  # MASTER_ADDR
        assert told is not None and ip_address(told[1]), done.stderr  # Ray puts the machine's own for a loopback one
        assert left.wait(10) is not None
        assert foreign.poll() is None
        assert cluster.head.poll() is None
        assert jobs_client(cluster.address) is not None
    finally:
        for process in (left, foreign):
            process.kill()
            process.wait()


def test_the_exit_code_of_the_training_is_that_of_the_script(cluster: Foreign) -> None:
    done = cluster.submit(SCRIPT, *SMALL, *ONE_CARD_EACH, "--prompt-data", "/nowhere.jsonl")
    assert done.returncode == 2, done.stdout[-3000:]
    assert "--prompt-data: no file or folder" in done.stdout


def test_the_command_of_the_guide_works_as_it_is_typed(cluster: Foreign, tmp_path: Path) -> None:
    """`ray job submit --address=... -- python3 relax/entrypoints/train.py ...`, with JSON and angle brackets."""
    words = ["--resource", '{"actor": [1, 8], "rollout": [1, 8]}', "--max-staleness", "0", "--colocate", "--dry-run"]
    words += ["--num-data-storage-units", "1", "--system-prompt", "say <think> & 'why'", "--apply-chat-template"]
    words += ["--hf-checkpoint", f"{cluster.env['EXP_DIR']}/Qwen3-4B/", "--rm-type", "dapo", "--input-key", "prompt"]
    words += ["--prompt-data", f"{cluster.env['EXP_DIR']}/dapo-math-17k/dapo-math-17k.jsonl", "--label-key", "label"]
    words += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--num-rollout", "1"]
    submit = [*RAY, "job", "submit", f"--address={cluster.address}", f"--runtime-env={ROOT}/configs/env.yaml", "--"]
    train = f"cd {ROOT} && exec {sys.executable} relax/entrypoints/train.py {shlex.join(words)}"
    env = {name: value for name, value in cluster.env.items() if name != "RAY_ADDRESS"}
    done = subprocess.run([*submit, "bash", "-c", train], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "say <think> & 'why'" in done.stdout


def test_an_interrupted_script_stops_its_job_and_not_the_cluster(cluster: Foreign) -> None:
    log = Path(cluster.env["EXP_DIR"]) / "interrupted.log"
    command = ["bash", str(ROOT / "scripts/entrypoint/ray-job.sh"), str(SCRIPT), *SMALL, *ONE_CARD_EACH]
    more = ["--num-rollout", "1000", "--save", f"{cluster.env['EXP_DIR']}/interrupted", "--eval-interval", "1000"]
    with open(log, "wb") as out:
        script = subprocess.Popen(
            [*command, *more], env=cluster.env, stdout=out, stderr=out, cwd=ROOT, start_new_session=True
        )
    try:
        end = time.monotonic() + 600  # a busy machine hands a job's log on late
        while len(re.findall(r"^step \d+/", log.read_text(), re.M)) < 2:  # it may go on where an earlier run ended
            assert script.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.5)
        script.send_signal(signal.SIGTERM)
        assert script.wait(120) == 143, log.read_text()[-3000:]
    finally:
        with_group(script)
    assert cluster.head.poll() is None
    saved = Path(cluster.env["EXP_DIR"]) / "interrupted/latest_checkpointed_iteration.txt"
    assert int(saved.read_text()) >= 1
