# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Forward ranks take published versions, under the trainer's names and under an engine's."""

from pathlib import Path

import pytest
import torch

from relax.backends.additions import LoraSpec
from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.fsdp.backend import FsdpBackend
from relax.components.adapter_versions import AdapterVersions
from relax.distributed.checkpoint_service.naming import sglang_names
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.utils.errors import WeightSyncError
from tests.unit.backends.training_cases import LogProbLoss, folder_of, groups, one_part

SPEC = LoraSpec(4, 16.0, seed=3, export_merged=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for kind in ("qwen3", "qwen3_moe", "qwen3_omni"):
        for seed in (0, 1):
            folder_of(root, kind, seed)
    return root


def opened(folder, **spec) -> FsdpBackend:
    backend = FsdpBackend()
    backend.open(ModelSpec(folder, trainable=False, **spec), None)
    return backend


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("qwen3", None),
        ("qwen3_moe", None),
        ("qwen3_moe", sglang_names("thinker.")),
        ("qwen3_omni", sglang_names("thinker.")),
    ],
)
def test_a_copy_holds_the_published_bits(models, tmp_path, kind, names):
    source, copy = opened(models / f"{kind}-1"), opened(models / f"{kind}-0")
    SharedMemoryPublisher(tmp_path, name_map=names).publish(3, source.weights())
    wanted = {name: tensor.clone() for name, tensor in source.weights()}
    assert any(not torch.equal(tensor, wanted[name]) for name, tensor in copy.weights())
    copy.load_weights(tmp_path / "v3")
    for name, tensor in copy.weights():
        assert torch.equal(tensor, wanted[name]), name


def test_a_bf16_copy_takes_bf16_weights(models, tmp_path):
    source, copy = opened(models / "qwen3-1", dtype="bf16"), opened(models / "qwen3-0", dtype="bf16")
    SharedMemoryPublisher(tmp_path).publish(1, source.weights())
    copy.load_weights(tmp_path / "v1")
    wanted = dict(source.weights())
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in copy.weights())


def test_another_models_version_changes_nothing(models, tmp_path):
    copy = opened(models / "qwen3_moe-0")
    before = {name: tensor.clone() for name, tensor in copy.weights()}
    SharedMemoryPublisher(tmp_path).publish(1, opened(models / "qwen3-1").weights())
    with pytest.raises(WeightSyncError, match=r"mlp\.experts\.gate_up_proj: absent"):
        copy.load_weights(tmp_path / "v1")
    assert all(torch.equal(tensor, before[name]) for name, tensor in copy.weights())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_copy_with_an_adapter_takes_one_and_scores_to_the_trainers_bits(models, tmp_path, dtype):
    """What actor_fwd does in adapter mode; it goes on from its own frozen matrices, version after version."""
    model = ModelSpec(models / "qwen3-0", dtype=dtype, lora=SPEC)
    source, copy = FsdpBackend(), opened(models / "qwen3-0", dtype=dtype, lora=SPEC)
    source.open(model, OptimizerSpec(lr=1e-2))
    versions, part = AdapterVersions(model, SharedMemoryPublisher(tmp_path)), one_part(groups(), 5)
    for version in (1, 2):
        source.backward(part, LogProbLoss())
        source.step(20.0)
        copy.load_weights(Path(str(versions.publish(source, version).folder)))
        right, found = (each.score(part, frozenset({"log_probs"})) for each in (source, copy))
        assert all((found[uid]["log_probs"] == columns["log_probs"]).all() for uid, columns in right.items())
    copy.save(tmp_path / "reference")
    again = opened(models / "qwen3-0", dtype=dtype, lora=SPEC)
    again.load(tmp_path / "reference", optimizer=False)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(again.weights(), copy.weights(), strict=True))


def test_a_whole_version_is_no_adapter(models, tmp_path):
    SharedMemoryPublisher(tmp_path).publish(1, opened(models / "qwen3-0").weights())
    copy = opened(models / "qwen3-0", lora=SPEC)
    with pytest.raises(WeightSyncError, match=r"q_proj\.lora_A: absent"):
        copy.load_weights(tmp_path / "v1")
