# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engine as a process: how it starts, serves over sockets, receives weights by broadcast, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from relax.backends.base import EngineConfig
from relax.backends.engine_client import EngineRefused, HttpEngineClient
from relax.backends.native.server import listen_on
from relax.backends.native.spec import NativeEngine
from relax.utils.errors import ConfigError

START_S = 120.0


def test_answers_do_not_wait_for_the_acknowledgement_of_their_headers():
    """Headers and body are two writes: without TCP_NODELAY the second one waits 40 ms for the peer's delayed ACK."""
    with listen_on("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


class EngineProcess:
    def __init__(self, config: EngineConfig, folder: Path, parent: int | None = None) -> None:
        command = NativeEngine().command(config, host="127.0.0.1", port=0, gpus=(), node_rank=0)
        self.port_file, argv = folder / "port", list(command.argv)
        if parent is not None:
            argv[argv.index("--parent-pid") + 1] = str(parent)
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [*argv, "--port-file", str(self.port_file)],
            env={**os.environ, **command.env},
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    async def client(self) -> HttpEngineClient:
        async with asyncio.timeout(START_S):
            while not self.port_file.exists():
                assert self.process.poll() is None, (self.port_file.parent / "log").read_text()
                await asyncio.sleep(0.05)
        return HttpEngineClient(f"http://127.0.0.1:{self.port_file.read_text()}", timeout_s=60.0)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20.0)
        finally:
            self.log.close()
            if self.process.poll() is None:
                self.process.kill()


@pytest.mark.service
async def test_a_process_serves_many_calls_and_ends_on_sigterm(text_folder, tmp_path):
    engine = EngineProcess(EngineConfig(text_folder, max_total_tokens=2048, max_running_requests=64), tmp_path)
    try:
        client = await engine.client()
        params = {"max_new_tokens": 6, "ignore_eos": True}
        calls = [
            {"input_ids": [20, 21 + i % 4], "sampling_params": {**params, "sampling_seed": i}} for i in range(120)
        ]
        answers = await asyncio.gather(*(client.generate(call) for call in calls))
        assert all(len(a["output_ids"]) == 6 for a in answers)
        assert [a["output_ids"] for a in answers[:4]] == [(await client.generate(c))["output_ids"] for c in calls[:4]]
        info = await client.info()
        assert info.backend == "native" and info.max_running_requests == 64
        with pytest.raises(EngineRefused, match="not JSON"):
            async with client._open().post(f"{client.url}/generate", data=b"{") as reply:
                raise EngineRefused(await reply.text(), status=reply.status)
        await client.close()
    finally:
        code = engine.stop()
    assert code in (0, -signal.SIGTERM)


@pytest.mark.service
async def test_a_request_whose_client_went_away_is_aborted(text_folder, tmp_path):
    engine = EngineProcess(EngineConfig(text_folder, max_total_tokens=2048), tmp_path)
    try:
        client = await engine.client()
        await client.pause("in_place")  # the request can only wait
        body = {"input_ids": [20], "sampling_params": {"max_new_tokens": 9}}
        request = asyncio.create_task(client.generate(body))
        async with asyncio.timeout(START_S):
            while (await client.info()).raw["internal_states"][0]["num_queue_reqs"] == 0:
                await asyncio.sleep(0.05)
            request.cancel()
            while (await client.info()).raw["internal_states"][0]["num_queue_reqs"]:
                await asyncio.sleep(0.05)
        await client.close()
    finally:
        engine.stop()


@pytest.mark.service
async def test_the_engine_dies_with_its_parent(text_folder, tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    engine = EngineProcess(EngineConfig(text_folder, max_total_tokens=256), tmp_path, parent.pid)
    try:
        await (await engine.client()).close()
        parent.kill()
        parent.wait()
        await asyncio.to_thread(engine.process.wait, 30.0)
    finally:
        engine.stop()
    assert engine.process.poll() is not None


async def test_weights_arrive_by_broadcast_over_gloo(engine, other_text_folder):
    from safetensors.torch import load_file

    client = engine()
    weights = load_file(other_text_folder / "model.safetensors")
    distributed, timeout = torch.distributed, timedelta(seconds=60)
    store = distributed.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=timeout, wait_for_workers=False)
    groups = []

    def join() -> None:
        groups.append(distributed.ProcessGroupGloo(distributed.PrefixStore("v1", store), 0, 2, timeout))

    def send() -> None:
        for tensor in weights.values():
            options = distributed.BroadcastOptions()
            options.rootRank = 0
            groups[0].broadcast([tensor], options).wait()

    group = {"group_name": "v1", "master_address": "127.0.0.1", "master_port": store.port}
    payload = {
        "group_name": "v1",
        "names": list(weights),
        "dtypes": [str(t.dtype) for t in weights.values()],
        "shapes": [list(t.shape) for t in weights.values()],
    }
    thread = threading.Thread(target=join)
    thread.start()
    await client.post("/init_weights_update_group", {**group, "rank_offset": 1, "world_size": 2, "backend": "gloo"})
    thread.join()
    with pytest.raises(EngineRefused, match="begin_weight_update"):
        await client.post("/update_weights_from_distributed", payload)
    await client.weights_begin()
    sender = threading.Thread(target=send)
    sender.start()
    await client.post("/update_weights_from_distributed", payload)
    sender.join()
    await client.weights_end(1)
    await client.post("/destroy_weights_update_group", {"group_name": "v1"})
    fresh = engine(other_text_folder)
    request = {
        "input_ids": [20, 21],
        "sampling_params": {"max_new_tokens": 8, "sampling_seed": 1},
        "return_logprob": True,
    }
    got, expected = await client.generate(request), await fresh.generate(request)
    assert got["meta_info"]["output_token_logprobs"] == expected["meta_info"]["output_token_logprobs"]
    assert got["meta_info"]["weight_version"] == "1"


async def test_a_broadcast_of_wrong_shapes_is_refused_before_anything_is_received(engine):
    client = engine()
    await client.weights_begin()
    with pytest.raises(EngineRefused, match="group_name 'none' is not known"):
        await client.post(
            "/update_weights_from_distributed", {"group_name": "none", "names": [], "dtypes": [], "shapes": []}
        )
    with pytest.raises(EngineRefused, match="use gloo"):
        await client.post(
            "/init_weights_update_group",
            {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "backend": "nccl"},
        )


def test_the_native_command_says_everything_the_engine_needs(tmp_path):
    config = EngineConfig(tmp_path, max_running_requests=7, max_total_tokens=99, suppressed_ids=(5, 6))
    command = NativeEngine().command(config, host="127.0.0.1", port=0, gpus=(), node_rank=0)
    argv = list(command.argv)
    assert argv[argv.index("--suppressed-ids") + 1] == "5,6"
    assert argv[argv.index("--max-total-tokens") + 1] == "99"
    assert command.env["OMP_NUM_THREADS"] == "1"
    with pytest.raises(ConfigError, match="tensor_parallel=2"):
        NativeEngine().command(EngineConfig(tmp_path, tensor_parallel=2), host="h", port=0, gpus=(), node_rank=0)
    with pytest.raises(ConfigError, match="SGLang's flags"):
        NativeEngine().command(EngineConfig(tmp_path, extra_args=("--x",)), host="h", port=0, gpus=(), node_rank=0)


def test_launch_specs_import_no_torch():
    code = (
        "import sys, relax.backends.native.spec, relax.backends.sglang.spec, relax.backends.engine_client;"
        "print([m for m in ('torch', 'transformers', 'ray') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
