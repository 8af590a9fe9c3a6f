# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from relax.distributed.checkpoint_service import publishers
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher, read_manifest, read_version
from relax.utils.errors import Divergence, WeightSyncError


def make_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Every dtype that models hold, a transposed view, a scalar and sizes that are not multiples of 8 bytes."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "odd": torch.randint(0, 255, (3,), dtype=torch.uint8, generator=rng),
        "a.weight": torch.randn(4, 6, generator=rng),
        "a.bias": torch.randn(5, generator=rng).to(torch.bfloat16),
        "view": torch.randn(4, 6, generator=rng).t(),
        "half": torch.randn(3, generator=rng).half(),
        "scalar": torch.tensor(seed, dtype=torch.int64),
        "flag": torch.tensor([True, False, True]),
        "double": torch.randn(1, generator=rng, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
    }


def assert_same(got: dict[str, torch.Tensor], put: dict[str, torch.Tensor]) -> None:
    assert got.keys() == put.keys()
    for name, tensor in put.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape
        assert torch.equal(got[name], tensor), name


def test_a_version_round_trips_bit_for_bit_and_is_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    put = make_weights()
    manifest = SharedMemoryPublisher(tmp_path).publish(7, put.items())
    staged, got = read_version(Path(manifest.folder))
    assert_same(got, put)
    assert_same(load_file(tmp_path / "v7" / "model.safetensors"), put)
    with safe_open(tmp_path / "v7" / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"  # transformers refuses a file without it
    assert staged == manifest == read_manifest(tmp_path / "v7")
    assert (manifest.version, manifest.transport) == (7, "disk")
    # 3 + 96 + 10 + 96 + 6 + 8 + 3 + 8 + 0 bytes
    assert manifest.num_bytes == 230
    by_name = {entry.name: entry for entry in manifest.tensors}
    assert by_name["a.bias"].dtype == "BF16" and by_name["a.bias"].shape == (5,)
    assert by_name["odd"].checksum == f"crc32:{zlib.crc32(put['odd'].numpy().tobytes()):08x}"


def test_a_root_in_shared_memory_is_called_shm() -> None:
    root = Path(f"/dev/shm/relax-test-{os.getpid()}")
    publisher = SharedMemoryPublisher(root)
    try:
        assert publisher.publish(1, {"w": torch.ones(2)}.items()).transport == "shm"
    finally:
        publisher.close()
    assert not root.exists()


def test_a_header_longer_than_the_first_guess_costs_one_rewrite(tmp_path: Path) -> None:
    put = {f"layers.{place}.{'x' * 100}": torch.full((2,), float(place)) for place in range(500)}
    publisher = SharedMemoryPublisher(tmp_path)
    for version in (1, 2):
        assert_same(read_version(Path(publisher.publish(version, put.items()).folder))[1], put)
    assert len(list((tmp_path / "v1").iterdir())) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_that_are_not_finite_are_never_published(tmp_path: Path, bad: float, dtype: torch.dtype) -> None:
    publisher = SharedMemoryPublisher(tmp_path)
    publisher.publish(1, {"good": torch.ones(4)}.items())
    broken = torch.ones(3, 4, dtype=dtype)
    broken[1, 2] = bad
    with pytest.raises(Divergence, match=r"version 2 .*1 of 12 values of 'head' \(first at \(1, 2\)\)"):
        publisher.publish(2, {"good": torch.ones(4), "head": broken}.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1"]


def test_finite_weights_whose_sum_overflows_are_published(tmp_path: Path) -> None:
    big = torch.full((4,), 3e38)  # finite each, their float32 sum is not
    assert not torch.isfinite(big.sum())
    SharedMemoryPublisher(tmp_path).publish(1, {"big": big, "half": torch.full((9,), 6e4).half()}.items())


def test_one_changed_byte_is_detected_and_named(tmp_path: Path) -> None:
    SharedMemoryPublisher(tmp_path).publish(1, make_weights().items())
    path = tmp_path / "v1" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightSyncError, match=r"version 1 .*checksum of '(odd|flag|half)' differs"):
        read_version(tmp_path / "v1")
    read_version(tmp_path / "v1", verify=False)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    SharedMemoryPublisher(tmp_path).publish(1, make_weights().items())
    path = tmp_path / "v1" / "manifest.json"
    data = json.loads(path.read_text())
    data["tensors"][0]["name"] = "renamed"
    path.write_text(json.dumps(data))
    with pytest.raises(WeightSyncError, match=r"missing tensors \['renamed'\], unexpected tensors \['[a-z.]+'\]"):
        read_version(tmp_path / "v1")


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    SharedMemoryPublisher(tmp_path).publish(1, {"w": torch.ones(2, 3)}.items())
    path = tmp_path / "v1" / "manifest.json"
    path.write_text(path.read_text().replace("[2, 3]", "[3, 2]"))
    with pytest.raises(WeightSyncError, match=r"'w' is F32 \(2, 3\), the manifest says F32 \(3, 2\)"):
        read_version(tmp_path / "v1")


@pytest.mark.parametrize("damage", ["absent", "truncated", "not json"])
def test_an_unreadable_version_is_a_weight_sync_error(tmp_path: Path, damage: str) -> None:
    SharedMemoryPublisher(tmp_path).publish(1, make_weights().items())
    path = tmp_path / "v1" / "model.safetensors"
    if damage == "absent":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        (tmp_path / "v1" / "manifest.json").write_text("{")
    with pytest.raises(WeightSyncError, match=r"cannot read weights from .*v1"):
        read_version(tmp_path / "v1")


def test_only_the_newest_versions_stay_and_a_mapped_one_outlives_its_folder(tmp_path: Path) -> None:
    publisher = SharedMemoryPublisher(tmp_path, keep=2)
    publisher.publish(1, make_weights(1).items())
    _, mapped = read_version(tmp_path / "v1")
    publisher.publish(2, make_weights(2).items())
    publisher.publish(3, make_weights(3).items())
    assert publisher.versions() == [2, 3]
    assert_same(mapped, make_weights(1))
    publisher.retire(before=3)
    assert publisher.versions() == [3]


def test_publishing_a_version_again_replaces_it(tmp_path: Path) -> None:
    """A resumed run trains the same rollout again and publishes its version once more."""
    publisher = SharedMemoryPublisher(tmp_path)
    publisher.publish(1, make_weights(1).items())
    publisher.publish(1, make_weights(5).items())
    assert_same(read_version(tmp_path / "v1")[1], make_weights(5))
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def test_a_failing_weight_iterator_leaves_nothing_behind(tmp_path: Path) -> None:
    def weights():
        yield "a", torch.ones(2)
        raise RuntimeError("gather failed")

    with pytest.raises(RuntimeError, match="gather failed"):
        SharedMemoryPublisher(tmp_path).publish(1, weights())
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match="'w' comes twice"):
        SharedMemoryPublisher(tmp_path).publish(1, [("w", torch.ones(2)), ("w", torch.ones(2))])


def test_a_buffer_reused_by_the_iterator_does_not_reach_the_version(tmp_path: Path) -> None:
    """A18: the gather buffer of the next tensor overwrites the last one, odd sizes included."""

    def weights():
        buffer = torch.empty(6)
        for place in range(4):
            length = 6 - place
            buffer.fill_(float(place))
            yield f"w{place}", buffer[:length]
            buffer.fill_(float("nan"))

    SharedMemoryPublisher(tmp_path).publish(1, weights())
    want = {f"w{place}": torch.full((6 - place,), float(place)) for place in range(4)}
    assert_same(read_version(tmp_path / "v1")[1], want)


def test_model_files_are_linked_and_weights_of_the_model_folder_are_not(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
    ):
        (model / name).write_text(name)
    SharedMemoryPublisher(tmp_path / "w", model).publish(1, {"w": torch.ones(2)}.items())
    folder = tmp_path / "w" / "v1"
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "manifest.json",
    }  # fmt: skip
    assert (folder / "tokenizer.json").read_text() == "tokenizer.json"
    assert_same(read_version(folder)[1], {"w": torch.ones(2)})


def test_every_dtype_word_is_safetensors_own(tmp_path: Path) -> None:
    """The words are read back by the safetensors library, so a wrong one fails here."""
    put = {name: torch.zeros(8).to(getattr(torch, name)) for name in publishers.SAFETENSORS_WORDS}
    SharedMemoryPublisher(tmp_path).publish(1, put.items())
    got = load_file(tmp_path / "v1" / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in got.items()} == {name: t.dtype for name, t in put.items()}
