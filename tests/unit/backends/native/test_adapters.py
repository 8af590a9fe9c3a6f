# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Adapters that an engine is given by themselves: the trainer's merged bits, by every transport, or a refusal."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from relax.backends.additions import LoraSpec
from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.engine_client import EngineRefused
from relax.backends.exact.low_rank import adapted_matrix, merged_weight, peft_name
from relax.backends.fsdp.backend import FsdpBackend
from relax.components.adapter_versions import AdapterVersions
from relax.distributed.checkpoint_service.base import ADAPTER, WeightManifest
from relax.distributed.checkpoint_service.checksums import tensor_checksum
from relax.distributed.checkpoint_service.gloo import GlooPublisher
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher, read_version
from relax.distributed.checkpoint_service.updater import install_version
from relax.schedule.clock import RealClock

SPEC = LoraSpec(4, 16.0, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"), seed=3, export_merged=False)


class Trainer:
    """A model with adapters that `move` draws anew, published the way the actor does."""

    def __init__(self, folder: Path, publisher, dtype: str = "fp32") -> None:
        self.backend, model = FsdpBackend(), ModelSpec(folder, dtype=dtype, lora=SPEC)
        self.backend.open(model, OptimizerSpec(lr=1e-3))
        self.publisher, self.versions = publisher, AdapterVersions(model, publisher)

    def move(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for shard in self.backend._trained:
            shard.master.data.copy_(0.1 * torch.randn(shard.master.shape, generator=generator))
            shard.publish()

    def publish(self, version: int) -> WeightManifest:
        manifest = self.versions.publish(self.backend, version)
        assert manifest is not None
        return manifest

    def merged(self) -> dict[str, str]:
        return {name: tensor_checksum(tensor) for name, tensor in self.backend.weights()}


async def install(client, manifest: WeightManifest, send=None):
    return await install_version(manifest, [client], clock=RealClock(), timeout_s=30, pause_mode="retract", send=send)


async def in_force(client) -> dict[str, str]:
    return (await client.post("/weights_checker", {"action": "checksum"}))["checksums"]


async def assert_serves(client, trainer: Trainer, version: int) -> None:
    assert (await client.info()).weight_version == str(version)
    found, right = await in_force(client), trainer.merged()
    assert {name: found[name] for name in right} == right


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
async def test_an_engine_merges_to_the_trainers_bits_version_after_version(engine, text_folder, tmp_path, dtype):
    client, trainer = engine(dtype=dtype), Trainer(text_folder, SharedMemoryPublisher(tmp_path), dtype)
    start = await in_force(client)
    for version in range(3):
        manifest = trainer.publish(version)
        (await install(client, manifest)).check()
        await assert_serves(client, trainer, version)
        whole = sum(t.numel() * t.element_size() for _, t in trainer.backend.weights())
        assert 0 < manifest.num_bytes == manifest.moved_bytes < whole / 3
        trainer.move(version)
    changed = {name for name, checksum in (await in_force(client)).items() if start[name] != checksum}
    assert len(changed) == 14 and all(name.endswith("_proj.weight") for name in changed)


async def test_a_broadcast_adapter_is_in_force_bit_for_bit(engine, text_folder):
    publisher = GlooPublisher(timeout_s=10)
    client, trainer = engine(), Trainer(text_folder, publisher)

    async def send(version: int, num_receivers: int, group_name: str) -> None:
        await asyncio.to_thread(publisher.send, version, num_receivers, group_name)

    for version in range(2):
        trainer.move(version)
        (await install(client, trainer.publish(version), send)).check()
        await assert_serves(client, trainer, version)


async def post_tensors(client, tensors, facts) -> None:
    blob = base64.b64encode(save(tensors)).decode()
    body = {"serialized_named_tensors": [blob], "load_format": "safetensors", ADAPTER: facts}
    await client.post("/update_weights_from_tensor", body)


async def test_an_adapter_may_come_in_pieces_as_tensors(engine, text_folder, tmp_path):
    client, trainer = engine(), Trainer(text_folder, SharedMemoryPublisher(tmp_path))
    trainer.move(5)
    manifest = trainer.publish(4)
    _, tensors = read_version(Path(str(manifest.folder)))
    await client.weights_begin()
    for half in ("lora_A", "lora_B"):
        await post_tensors(client, {n: t for n, t in tensors.items() if half in n}, manifest.extra[ADAPTER])
    await client.weights_end(4)
    await assert_serves(client, trainer, 4)


async def test_an_adapter_follows_whole_weights_only_where_they_are_the_trainers(
    engine, text_folder, other_text_folder, tmp_path
):
    client, trainer = engine(), Trainer(text_folder, SharedMemoryPublisher(tmp_path / "adapters"))
    trainer.move(1)
    (await install(client, trainer.publish(1))).check()
    whole = SharedMemoryPublisher(tmp_path / "whole")
    for folder, version in ((other_text_folder, 2), (text_folder, 4)):
        other = FsdpBackend()
        other.open(ModelSpec(folder), None)
        (await install(client, whole.publish(version, other.weights()))).check()
        trainer.move(version)
        report = await install(client, trainer.publish(version + 1))
        if folder is text_folder:
            report.check()
            await assert_serves(client, trainer, 5)
        else:
            (failed,) = report.engines
            assert failed.stage == "end" and "other frozen weights than this engine has loaded" in str(failed.error)
            assert "--lora-merge-mode" in str(failed.error)
            right = {name: tensor_checksum(tensor) for name, tensor in other.weights()}
            found = await in_force(client)
            assert {name: found[name] for name in right} == right  # nothing of the adapter is in them


async def test_a_version_with_the_same_bits_is_told_by_its_number(engine, text_folder, tmp_path):
    client, trainer = engine(), Trainer(text_folder, SharedMemoryPublisher(tmp_path, keep=4))
    trainer.move(1)
    (await install(client, trainer.publish(1))).check()
    calls: list[str] = []
    client._send = _noting(calls, client._send)
    same = [trainer.publish(version) for version in (2, 3)]
    assert [(m.adapter.since, m.moved_bytes) for m in same] == [(1, 0), (1, 0)]
    (await install(client, same[1])).check()  # it never heard of version 2
    assert [path for path in calls if "update" in path or "pause" in path] == ["/update_weight_version"]
    await assert_serves(client, trainer, 3)
    late = engine()
    (await install(late, same[1])).check()  # one that joins has not the bits
    await assert_serves(late, trainer, 3)
    trainer.move(2)
    manifest = trainer.publish(4)
    assert (manifest.adapter.since, manifest.moved_bytes) == (4, manifest.num_bytes)
    (await install(client, manifest)).check()
    await assert_serves(client, trainer, 4)


def _noting(calls: list[str], send):
    async def noted(method, path, payload, *, repeat):
        calls.append(path)
        return await send(method, path, payload, repeat=repeat)

    return noted


def test_a_zero_that_changes_its_sign_is_another_version(text_folder, tmp_path):
    """0.0 == -0.0, but their products with a negative number differ in their sign bits."""
    trainer = Trainer(text_folder, SharedMemoryPublisher(tmp_path))
    assert trainer.publish(0).adapter.since == 0
    assert trainer.publish(1).adapter.since == 0
    shard = next(s for s in trainer.backend._trained if s.name.endswith("lora_B"))
    assert (shard.master.data == 0).all()
    shard.master.data.neg_()
    assert (shard.master.data == 0).all()
    assert trainer.publish(2).adapter.since == 2
    trainer.versions.weights_replaced()  # a loaded checkpoint: engines may hold anything
    assert trainer.publish(3).adapter.since == 3


def damaged(tensors: dict[str, torch.Tensor]):
    """(tensors, words of the refusal) of wrong updates."""
    name = next(n for n in tensors if n.endswith("q_proj.lora_A.weight"))
    other = name.replace("lora_A", "lora_B")
    yield {n: t for n, t in tensors.items() if n != other}, r"A or B of \['model\.layers\.0\.self_attn\.q_proj"
    yield {**tensors, name: tensors[name][:2].contiguous()}, r"has shape \[2, 64\], an adapter of rank 4 has \[4, 64\]"
    unknown = name.replace("q_proj", "x_proj")
    yield {**tensors, unknown: tensors[name].clone()}, r"x_proj\.lora_A\.weight' belongs to no matrix of this model"
    yield {**tensors, "model.norm.weight": torch.ones(64)}, r"'model\.norm\.weight' has no name of an adapter"
    fewer = {n: t for n, t in tensors.items() if "q_proj" not in n}
    yield fewer, r"the adapter before this one had other matrices: \['model\.layers\.0\.self_attn\.q_proj\.weight'"


async def test_a_wrong_adapter_leaves_the_old_weights_whole(engine, text_folder, tmp_path):
    client, trainer = engine(), Trainer(text_folder, SharedMemoryPublisher(tmp_path))
    trainer.move(1)
    (await install(client, trainer.publish(1))).check()
    before = await in_force(client)
    trainer.move(2)
    manifest = trainer.publish(2)
    _, tensors = read_version(Path(str(manifest.folder)))
    facts = manifest.extra[ADAPTER]
    for wrong, words in damaged(tensors):
        await client.weights_begin()
        with pytest.raises(EngineRefused, match=words):
            await post_tensors(client, wrong, facts)
            await client.weights_end(2)
    await client.weights_begin()
    with pytest.raises(EngineRefused, match="adapter: not the facts of an adapter"):
        await post_tensors(client, tensors, {**facts, "config": {"r": 0, "lora_alpha": 1}})
    await client.weights_begin()
    whole = {name: tensor.clone() for name, tensor in trainer.backend.weights("frozen")}
    await post_tensors(client, whole, None)
    with pytest.raises(EngineRefused, match="the whole model or one adapter, not both"):
        await post_tensors(client, tensors, facts)
    assert await in_force(client) == before
    assert (await client.info()).weight_version == "1"
    (await install(client, manifest)).check()
    await assert_serves(client, trainer, 2)


def test_names_in_peft_are_those_of_the_matrix():
    name = "model.layers.0.self_attn.q_proj.lora_A"
    assert peft_name(name) == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert adapted_matrix(peft_name(name)) == ("model.layers.0.self_attn.q_proj.weight", "lora_A")
    assert adapted_matrix("model.layers.0.self_attn.q_proj.weight") is None
    assert adapted_matrix("base_model.model.score.weight") is None


def test_the_published_folder_is_an_adapter_that_peft_loads(text_folder, tmp_path):
    import peft
    import transformers

    trainer = Trainer(text_folder, SharedMemoryPublisher(tmp_path))
    trainer.move(1)
    folder = Path(str(trainer.publish(1).folder))
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
    ]
    model = transformers.AutoModelForCausalLM.from_pretrained(text_folder, dtype=torch.float32)
    own = peft.PeftModel.from_pretrained(model, folder)
    named = dict(own.named_parameters())
    for name, tensor in trainer.backend.weights("adapters"):
        owner, _, half = name.rpartition(".")
        assert torch.equal(named[f"base_model.model.{owner}.{half}.default.weight"], tensor)


def test_the_merge_keeps_its_bits_in_every_layout_of_the_matrix():
    """The engine's matrices lie input by input, the trainer's output by output."""
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(shape, generator=generator) for shape in ((96, 64), (4, 64), (96, 4)))
    turned = weight.mT.clone(memory_format=torch.contiguous_format).mT
    assert torch.equal(merged_weight(weight, a, b, 4.0), merged_weight(turned, a, b, 4.0))
