# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Publisher, install and the real native engine, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from relax.backends.engine_client import AsgiEngineClient
from relax.backends.native.build import EngineSettings, build_app
from relax.distributed.checkpoint_service.checksums import tensor_checksum
from relax.distributed.checkpoint_service.gloo import GlooPublisher
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.distributed.checkpoint_service.updater import InstallReport, install_version
from relax.schedule.clock import RealClock
from tests.builders import build_tiny_model, build_tiny_model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"), "qwen3", seed=0)


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsgiEngineClient]:
    client = AsgiEngineClient(build_app(EngineSettings(folder, max_total_tokens=1024)))
    yield client
    await client.close()


def weights_of(seed: int) -> dict[str, torch.Tensor]:
    """Every parameter once, as a training backend yields them."""
    return dict(build_tiny_model("qwen3", seed=seed).named_parameters())


async def checksums(engine: AsgiEngineClient) -> dict[str, str]:
    answer = await engine.post("/weights_checker", {"action": "checksum"})
    return answer["checksums"]


async def install(publisher, version: int, seed: int, engine: AsgiEngineClient, send=None) -> InstallReport:
    manifest = publisher.publish(version, weights_of(seed).items())
    return await install_version(manifest, [engine], clock=RealClock(), timeout_s=30, pause_mode="in_place", send=send)


async def assert_serves(engine: AsgiEngineClient, version: int, seed: int) -> None:
    assert (await engine.info()).weight_version == str(version)
    in_force = await checksums(engine)
    for name, tensor in weights_of(seed).items():
        assert in_force[name] == tensor_checksum(tensor.detach()), name


async def test_A19_every_tensor_of_a_mixture_of_experts_is_in_force_bit_for_bit(tmp_path: Path) -> None:
    """Fused expert tensors too; an engine that kept a single old one would have another checksum."""
    model = build_tiny_model_folder(tmp_path / "model", "qwen3_moe", seed=0)
    engine = AsgiEngineClient(build_app(EngineSettings(model, max_total_tokens=1024)))
    weights = dict(build_tiny_model("qwen3_moe", seed=11).named_parameters())
    assert any("experts" in name and tensor.ndim == 3 for name, tensor in weights.items())
    manifest = SharedMemoryPublisher(tmp_path / "versions", model).publish(1, weights.items())
    report = await install_version(manifest, [engine], clock=RealClock(), timeout_s=30, pause_mode="in_place")
    report.check()
    in_force = await checksums(engine)
    assert {name: in_force[name] for name in weights} == {n: tensor_checksum(t.detach()) for n, t in weights.items()}
    await engine.close()


async def test_a_folder_version_is_in_force_bit_for_bit(
    engine: AsgiEngineClient, tmp_path: Path, folder: Path
) -> None:
    """A19."""
    publisher = SharedMemoryPublisher(tmp_path, folder)
    for version, seed in ((1, 11), (2, 12)):
        (await install(publisher, version, seed, engine)).check()
        await assert_serves(engine, version, seed)


async def test_a_broadcast_version_is_in_force_bit_for_bit(engine: AsgiEngineClient) -> None:
    publisher = GlooPublisher(timeout_s=10)

    async def send(version: int, num_receivers: int, group_name: str) -> None:
        await asyncio.to_thread(publisher.send, version, num_receivers, group_name)

    for version, seed in ((1, 11), (2, 12)):
        (await install(publisher, version, seed, engine, send)).check()
        await assert_serves(engine, version, seed)


async def test_a_corrupted_version_is_refused_and_the_old_one_serves_on(
    engine: AsgiEngineClient, tmp_path: Path
) -> None:
    publisher = SharedMemoryPublisher(tmp_path)
    (await install(publisher, 1, 11, engine)).check()
    manifest = publisher.publish(2, weights_of(12).items())
    path = tmp_path / "v2" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    report = await install_version(manifest, [engine], clock=RealClock(), timeout_s=30, pause_mode="in_place")
    assert report.failed == (engine.url,) and report.engines[0].stage == "weights"
    assert "checksum" in str(report.engines[0].error)
    await assert_serves(engine, 1, 11)
    answer = await engine.generate(
        {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    )
    assert len(answer["output_ids"]) >= 1
    (await install(publisher, 3, 13, engine)).check()
    await assert_serves(engine, 3, 13)
