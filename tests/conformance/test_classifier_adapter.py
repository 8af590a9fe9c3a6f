# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The real SGLang serves an exported classifier by the example's adapter, with transformers' logits."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from relax.backends.sglang.spec import CPU_ARGS, CPU_LAUNCHER
from relax.entrypoints.ray_cluster import free_port
from tests.builders import tiny_qwen3_config, tiny_tokenizer

ROOT = Path(__file__).parents[2]
ADAPTER = "examples.seq_cls_sft.sglang_adapter"
START_TIMEOUT_S = 500.0
TEXTS = ([5, 9, 2, 7], [3], list(range(10, 40)))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    config = tiny_qwen3_config(tiny_tokenizer())
    config.num_labels = 3
    torch.manual_seed(2)
    folder = tmp_path_factory.mktemp("classifier") / "model"
    transformers.Qwen3ForSequenceClassification(config).float().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(engine_name: str, classifier: Path) -> Iterator[str]:
    if engine_name != "sglang":
        pytest.skip("needs the real SGLang: make test-sglang")
    port = free_port()
    command = [os.environ["RELAX_SGLANG_PYTHON"], str(CPU_LAUNCHER), "--model-path", str(classifier), "--is-embedding"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--sleep-on-idle", *CPU_ARGS]
    command += ["--max-total-tokens", "4096", "--skip-server-warmup"]
    own = {
        "PYTHONPATH": str(ROOT), "SGLANG_EXTERNAL_MODEL_PACKAGE": ADAPTER, "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    with open(classifier.parent / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log, cwd=ROOT)
    try:
        end = time.monotonic() + START_TIMEOUT_S
        while not answers(f"http://127.0.0.1:{port}/health"):
            told = (classifier.parent / "server.log").read_text(errors="replace")[-3000:]
            assert server.poll() is None and time.monotonic() < end, told
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            return reply.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def embeddings(url: str, ids: list[list[int]]) -> list[list[float]]:
    body = json.dumps({"model": "classifier", "input": ids}).encode()
    request = urllib.request.Request(url + "/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=100) as reply:
        return [one["embedding"] for one in json.loads(reply.read())["data"]]


@pytest.mark.service
def test_the_answer_is_the_logits_of_the_last_token(url: str, classifier: Path) -> None:
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    with torch.no_grad():
        right = [model(input_ids=torch.tensor([ids])).logits[0].tolist() for ids in TEXTS]
    alone = [embeddings(url, [ids])[0] for ids in TEXTS]
    np.testing.assert_allclose(alone, right, atol=1e-5)
    np.testing.assert_allclose(embeddings(url, list(TEXTS)), right, atol=1e-5)
