# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weight versions in memory: a publisher whose manifests name an entry of a shared store instead of a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relax.distributed.checkpoint_service.base import AdapterFacts, TensorEntry, WeightManifest
from relax.distributed.checkpoint_service.checksums import checksum
from relax.utils.errors import WeightSyncError

if TYPE_CHECKING:
    from torch import Tensor


class WeightStore:
    """Published versions by the name that their manifest gives as folder."""

    def __init__(self) -> None:
        self._versions: dict[str, tuple[WeightManifest, dict[str, np.ndarray]]] = {}

    def put(self, manifest: WeightManifest, tensors: dict[str, np.ndarray]) -> None:
        self._versions[str(manifest.folder)] = (manifest, tensors)

    def read(self, folder: Path) -> tuple[WeightManifest, dict[str, np.ndarray]]:
        """Copies of a version's tensors, checked against the manifest. A name that is not here is read from disk."""
        if str(folder) not in self._versions:
            from relax.distributed.checkpoint_service.publishers import read_version

            manifest, tensors = read_version(Path(folder))
            return manifest, {name: tensor.numpy() for name, tensor in tensors.items()}
        manifest, arrays = self._versions[str(folder)]
        for entry in manifest.tensors:
            if checksum(np.ascontiguousarray(arrays[entry.name])) != entry.checksum:
                raise WeightSyncError(f"version {manifest.version}: checksum of {entry.name!r} differs")
        return manifest, {name: array.copy() for name, array in arrays.items()}

    def retire(self, before: int) -> None:
        for folder in [f for f, (manifest, _) in self._versions.items() if manifest.version < before]:
            del self._versions[folder]


class MemoryPublisher:
    """`WeightPublisher` into a store; the newest `keep` versions stay."""

    def __init__(self, store: WeightStore, *, keep: int = 2) -> None:
        self._store, self._keep = store, keep

    def publish(
        self, version: int, weights: Iterable[tuple[str, Tensor]], adapter: AdapterFacts | None = None
    ) -> WeightManifest:
        from relax.distributed.checkpoint_service.publishers import SAFETENSORS_WORDS, check_finite

        if adapter is not None:
            raise NotImplementedError("a table has no adapters")
        arrays, entries = {}, []
        for name, tensor in weights:
            check_finite(name, tensor, version)
            arrays[name] = tensor.detach().cpu().numpy().copy()
            word = SAFETENSORS_WORDS[str(tensor.dtype).removeprefix("torch.")]
            entries.append(TensorEntry(name, word, tuple(tensor.shape), checksum(arrays[name])))
        num_bytes = sum(entry.num_bytes for entry in entries)
        manifest = WeightManifest(version, "shm", f"memory-v{version}", tuple(entries), num_bytes)
        self._store.put(manifest, arrays)
        self._store.retire(version + 1 - self._keep)
        return manifest

    def retire(self, before: int) -> None:
        self._store.retire(before)

    def close(self) -> None:
        """The store belongs to whoever made it."""
