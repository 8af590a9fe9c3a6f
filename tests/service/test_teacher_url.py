# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""--opd-teacher-url: a native engine on a port of its own that the run neither starts nor stops."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import build_tiny_model_folder
from tests.service.test_ppo import same
from tests.service.training_run import ROOT, Finished, Inputs, inline

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]
START_S = 120.0


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("teacher") / "model", seed=7)


@pytest.fixture(scope="module")
def url(teacher: Path, tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    port, log = folder / "port", folder / "log"
    command = [sys.executable, "-m", "relax.backends.native.server", "--model-path", teacher, "--port", 0]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*map(str, command), "--host", "127.0.0.1", "--port-file", str(port)],
            cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        end = time.monotonic() + START_S
        while not port.exists():
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port.read_text()}"
        assert process.poll() is None, f"the runs leave it alone: {log.read_text()}"
    finally:
        process.terminate()
        process.wait(20.0)


@pytest.fixture
def run(inputs: Inputs, tmp_path: Path):
    def go(*words: object, name: str = "run", ok: bool = True, **changed: object) -> Finished:
        own: dict[str, object] = {"custom_rm_path": None, "rm_type": "dummy", "num_rollout": 3, **changed}
        done = inline([*inputs.flags(tmp_path / name, **own), "--colocate", "--use-opd", *words])
        return done.ok() if ok else done

    return go


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--opd-loss-coef", 1.0, "--opd-token-selection", "teacher_topk", "--opd-log-prob-top-k", 8),
        ("--opd-token-selection", "union", "--opd-log-prob-top-k", 4, "--opd-kl-type", "jsd"),
    ],
    ids=["sampled", "teacher_topk", "union"],
)
def test_an_engine_at_a_url_gives_the_weights_that_an_engine_of_the_run_gives(run, teacher, url, words):
    own = run(*words, name="own", teacher_hf_checkpoint=teacher)
    there = run(*words, name="there", opd_teacher_url=url)
    assert own.metrics("train/opd_kl") == there.metrics("train/opd_kl")
    assert same(own.folder / "iter_0000002/model", there.folder / "iter_0000002/model")


def test_nobody_at_the_url_is_told_at_the_start(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    done = run(ok=False, opd_teacher_url=address)
    assert done.code == 5
    assert f"the teacher at {address} (--opd-teacher-url) is not there" in done.err
    assert "Connect call failed" in done.err and "must serve before the run starts" in done.err


def test_a_server_that_never_answers_is_given_up_after_the_flags_time(run):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its queue
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        done = run("--opd-teacher-timeout-s", 0.5, ok=False, opd_teacher_url=address)
    assert done.code == 5
    assert f"the teacher at {address} (--opd-teacher-url) is not there" in done.err
    assert "no answer within 0.5 s" in done.err and "raise --opd-teacher-timeout-s" in done.err
    assert time.monotonic() - started < 60


def test_another_tokenizer_at_the_url_is_told_at_the_start(run, inputs, url, tmp_path):
    student = shutil.copytree(inputs.model, tmp_path / "student")
    file = student / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    ids = content["model"]["vocab"]
    ids["7"], ids["5"] = ids["5"], ids["7"]
    file.write_text(json.dumps(content), "utf-8")
    done = run(ok=False, opd_teacher_url=url, hf_checkpoint=student)
    assert done.code == 2
    assert f"the teacher at {url} (--opd-teacher-url) has another tokenizer: it reads 'What is 7" in done.err


def test_an_address_of_something_else_is_told_at_the_start(run, url):
    done = run(ok=False, opd_teacher_url=f"{url}/v1")
    assert done.code == 2
    assert "does not answer as SGLang's engines do" in done.err and "HTTP 404" in done.err
