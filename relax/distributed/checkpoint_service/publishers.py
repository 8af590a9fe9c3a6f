# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weight versions as folders `<root>/v{N}/`: model.safetensors, manifest.json, links to the model's other files.

An adapter by itself is a folder that peft loads: adapter_model.safetensors, adapter_config.json, manifest.json.

A folder is written aside and renamed, never changed afterwards, so any number of receivers, late or restarted ones
too, read it without the trainer. An unlinked folder stays readable for whoever has it mapped.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from relax.distributed.checkpoint_service.base import ADAPTER, AdapterFacts, TensorEntry, WeightManifest
from relax.distributed.checkpoint_service.checksums import checksum, raw_bytes
from relax.utils.errors import Divergence, WeightSyncError

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
HEADER_BYTES = 1 << 16  # first guess of the safetensors header; a larger one costs one more copy, once
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")

NameMap = Callable[[Iterable[tuple[str, "Tensor"]]], Iterator[tuple[str, "Tensor"]]]


class SharedMemoryPublisher:
    """Writes each version into a folder under `root`; with `root` below /dev/shm no disk is touched.

    `model_folder` is an HF folder whose config, tokenizer and processor files are linked into each version, so that
    SGLang's /update_weights_from_disk takes the folder. The newest `keep` versions stay. `name_map` renames and splits
    tensors on the way (`naming.sglang_names`).
    """

    def __init__(
        self, root: Path, model_folder: Path | None = None, *, keep: int = 2, name_map: NameMap | None = None
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be >= 1 version, got {keep}")
        self.root = Path(root)
        self._model_folder = Path(model_folder).resolve() if model_folder else None
        self._keep = keep
        self._name_map = name_map
        self._header_bytes = HEADER_BYTES
        self._transport = "shm" if self.root.resolve().is_relative_to("/dev/shm") else "disk"
        self.root.mkdir(parents=True, exist_ok=True)

    def publish(
        self, version: int, weights: Iterable[tuple[str, Tensor]], adapter: AdapterFacts | None = None
    ) -> WeightManifest:
        """Write `v{version}`; one tensor is held at a time. Nothing becomes visible when a value is not finite."""
        final = self.root / f"v{version}"
        partial = self.root / f".v{version}.partial.{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            tensors = self._name_map(weights) if self._name_map and adapter is None else weights
            file = partial / (WEIGHTS if adapter is None else ADAPTER_WEIGHTS)
            entries = self._write_weights(file, version, tensors)
            manifest = WeightManifest(
                version,
                self._transport,
                str(final),
                entries,
                sum(e.num_bytes for e in entries),
                {"format": "safetensors"} | ({ADAPTER: adapter.to_json()} if adapter else {}),
            )
            (partial / MANIFEST).write_text(json.dumps(manifest.to_json()))
            if adapter is None:
                self._link_model_files(partial)
            else:
                (partial / ADAPTER_CONFIG).write_text(json.dumps(adapter.config))
            self._replace(partial, final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._trim()
        return manifest

    def retire(self, before: int) -> None:
        for version in self.versions():
            if version < before:
                shutil.rmtree(self.root / f"v{version}", ignore_errors=True)

    def close(self) -> None:
        """Remove every version and the root folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def versions(self) -> list[int]:
        """Published versions that are still there, ascending."""
        names = (path.name for path in self.root.iterdir()) if self.root.exists() else ()
        return sorted(int(name[1:]) for name in names if name[:1] == "v" and name[1:].isdecimal())

    def _trim(self) -> None:
        kept = self.versions()[-self._keep :]
        if kept:
            self.retire(kept[0])

    def _write_weights(
        self, path: Path, version: int, tensors: Iterable[tuple[str, Tensor]]
    ) -> tuple[TensorEntry, ...]:
        reserved, data, entries = self._header_bytes, {}, []
        with open(path, "wb") as file:
            file.seek(reserved)
            offset = 0
            for name, tensor in _odd_sizes_last(tensors):
                if name in data:
                    raise WeightSyncError(f"version {version}: tensor {name!r} comes twice from the weight iterator")
                tensor = tensor.detach().cpu().contiguous()
                check_finite(name, tensor, version)
                raw = raw_bytes(tensor)
                file.write(raw)
                word = SAFETENSORS_WORDS[str(tensor.dtype).removeprefix("torch.")]
                data[name] = {
                    "dtype": word,
                    "shape": list(tensor.shape),
                    "data_offsets": [offset, offset + raw.nbytes],
                }
                entries.append(TensorEntry(name, word, tuple(tensor.shape), checksum(raw)))
                offset += raw.nbytes
            header = json.dumps({"__metadata__": {"format": "pt", "version": str(version)}, **data}).encode()
            if len(header) + 8 <= reserved:
                _write_header(file, header, reserved)
                return tuple(entries)
        self._header_bytes = -(-(len(header) + 8) // 4096) * 4096
        _widen_header(path, header, reserved, self._header_bytes)
        return tuple(entries)

    def _link_model_files(self, folder: Path) -> None:
        if self._model_folder is None:
            return
        for path in self._model_folder.iterdir():
            if path.is_file() and not path.name.endswith(WEIGHT_SUFFIXES) and path.name not in (MANIFEST, WEIGHTS):
                (folder / path.name).symlink_to(path)

    def _replace(self, partial: Path, final: Path) -> None:
        """Rename into place; a version of an earlier incarnation of the run makes way."""
        if final.exists():
            old = self.root / f".{final.name}.old.{os.getpid()}"
            final.rename(old)
            partial.rename(final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            partial.rename(final)


SAFETENSORS_WORDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def check_finite(name: str, tensor: Tensor, version: int) -> None:
    """Raise `Divergence` naming the tensor when it holds a NaN or an infinity."""
    import torch

    if not tensor.dtype.is_floating_point or tensor.numel() == 0:
        return
    narrow = tensor.dtype.itemsize == 1  # fp8 has no sum of its own
    if torch.isfinite((tensor.float() if narrow else tensor).sum(dtype=torch.float64 if narrow else None)):
        return  # any NaN or infinity would have reached the sum
    bad = ~torch.isfinite(tensor.float() if narrow else tensor)
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise Divergence(
            f"weights of version {version} are not finite: {int(bad.sum())} of {tensor.numel()} values of {name!r} "
            f"(first at {place}); the version is not published and engines keep what they have"
        )


def read_version(folder: Path, *, verify: bool = True) -> tuple[WeightManifest, dict[str, Tensor]]:
    """Stage a published version: its manifest and its tensors, mapped from the file copy-on-write.

    Raises `WeightSyncError` when the file does not hold exactly the manifest's tensors, or when a checksum differs.
    Copy the tensors into place before relying on them beyond the life of the version.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        manifest = WeightManifest.from_json(json.loads((folder / MANIFEST).read_text()))
        tensors = load_file(folder / (WEIGHTS if manifest.adapter is None else ADAPTER_WEIGHTS))
    except Exception as error:  # the file layer has many error types; the caller hears of each as one kind
        raise WeightSyncError(f"cannot read weights from {folder}: {type(error).__name__}: {error}") from error
    check_tensors(manifest, tensors, verify=verify, source=str(folder))
    return manifest, tensors


def check_tensors(manifest: WeightManifest, tensors: dict[str, Tensor], *, verify: bool = True, source: str) -> None:
    """Raise `WeightSyncError` unless names, dtypes, shapes and (with `verify`) checksums are the manifest's."""
    from relax.distributed.checkpoint_service.checksums import tensor_checksum

    who = f"version {manifest.version} from {source}"
    expected = {entry.name: entry for entry in manifest.tensors}
    check_names(expected, tensors, who=who)
    for name, entry in expected.items():
        tensor = tensors[name]
        got = (SAFETENSORS_WORDS[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))
        if got != (entry.dtype, entry.shape):
            raise WeightSyncError(
                f"{who}: {name!r} is {got[0]} {got[1]}, the manifest says {entry.dtype} {entry.shape}"
            )
        if verify and tensor_checksum(tensor) != entry.checksum:
            raise WeightSyncError(f"{who}: checksum of {name!r} differs; the bytes changed after they were published")


def check_names(expected: Iterable[str], got: Iterable[str], *, who: str) -> None:
    """Raise `WeightSyncError` naming missing and unexpected tensors."""
    missing, extra = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    if missing or extra:
        raise WeightSyncError(f"{who}: missing tensors {missing[:5]}, unexpected tensors {extra[:5]}")


def _odd_sizes_last(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Stream the tensors whose bytes are a multiple of 8; hold back the others, largest element first.

    A mapped safetensors file is read as views, and a view must start at a multiple of its element size.
    """
    held: list[tuple[str, Tensor]] = []
    for name, tensor in tensors:
        if tensor.numel() * tensor.element_size() % 8:
            held.append((name, tensor.detach().clone()))
        else:
            yield name, tensor
    yield from sorted(held, key=lambda item: -item[1].element_size())


def _write_header(file: IO[bytes], header: bytes, reserved: int) -> None:
    """safetensors header at the start of the file, padded with spaces up to the data."""
    file.seek(0)
    file.write(struct.pack("<Q", reserved - 8) + header.ljust(reserved - 8))


def _widen_header(path: Path, header: bytes, old: int, new: int) -> None:
    """Rewrite the file with room for a longer header."""
    wide = path.with_suffix(".wide")
    with open(path, "rb") as source, open(wide, "wb") as target:
        _write_header(target, header, new)
        source.seek(old)
        shutil.copyfileobj(source, target, 1 << 22)
    os.replace(wide, path)


def read_manifest(folder: Path) -> WeightManifest:
    """The manifest of a published folder."""
    data: dict[str, Any] = json.loads((Path(folder) / MANIFEST).read_text())
    return WeightManifest.from_json(data)
