# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weight versions by broadcast: one gloo group per version on a prefix of one long-lived store.

The sender stages copies at `publish`, so training goes on while receivers join; `send` forms the group and broadcasts
tensor by tensor in manifest order. Receivers join by SGLang's routes (`updater.install_version` calls them), receive
into staging, and switch only after the last tensor. A member that dies fails the send, and every other receiver keeps
its old version once its own time-out has passed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from relax.distributed.checkpoint_service.base import ADAPTER, AdapterFacts, TensorEntry, WeightManifest
from relax.distributed.checkpoint_service.checksums import tensor_checksum
from relax.distributed.checkpoint_service.publishers import SAFETENSORS_WORDS, NameMap, check_finite
from relax.utils.errors import WeightSyncError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

logger = logging.getLogger(__name__)

BUCKET_BYTES = 512 << 20  # tensors announced to a receiver in one request
Receiver = Literal["native", "sglang"]


class GlooPublisher:
    """Sends versions from training rank 0. `host` is this machine's address as receivers see it.

    `receiver` says whose keys are used in the store: SGLang joins through torch's own helper, which nests three
    prefixes; the native engine uses the group name alone. All members of one group are of one kind.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        timeout_s: float = 30.0,
        keep: int = 2,
        receiver: Receiver = "native",
        name_map: NameMap | None = None,
    ) -> None:
        from torch.distributed import TCPStore

        self._host = host
        self._timeout = timedelta(seconds=timeout_s)
        self._keep = keep
        self._receiver = receiver
        self._name_map = name_map
        self._staged: dict[int, list[tuple[str, Tensor]]] = {}
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)

    def publish(
        self, version: int, weights: Iterable[tuple[str, Tensor]], adapter: AdapterFacts | None = None
    ) -> WeightManifest:
        """Stage a copy of every tensor; `send` moves it."""
        staged: list[tuple[str, Tensor]] = []
        entries: list[TensorEntry] = []
        for name, tensor in self._name_map(weights) if self._name_map and adapter is None else weights:
            copy = tensor.detach().to("cpu", copy=True).contiguous()
            check_finite(name, copy, version)
            word = SAFETENSORS_WORDS[str(copy.dtype).removeprefix("torch.")]
            entries.append(TensorEntry(name, word, tuple(copy.shape), tensor_checksum(copy)))
            staged.append((name, copy))
        self._staged[version] = staged
        self.retire(sorted(self._staged)[-self._keep :][0])
        extra = {"master_address": self._host, "master_port": self._store.port, "bucket_bytes": BUCKET_BYTES}
        extra |= {ADAPTER: adapter.to_json()} if adapter else {}
        return WeightManifest(version, "gloo", None, tuple(entries), sum(e.num_bytes for e in entries), extra)

    def send(self, version: int, num_receivers: int, group_name: str) -> None:
        """Broadcast a staged version to `num_receivers` members (ranks 1 ..) of `group_name`. Blocking, bounded.

        Raises `WeightSyncError` when a member does not join or dies.
        """
        staged = self._staged.get(version)
        if staged is None:
            raise WeightSyncError(f"version {version} is not staged; staged are {sorted(self._staged)}")
        try:
            group = join_group(self._store, group_name, 0, num_receivers + 1, self._timeout, self._receiver)
            for _, tensor in staged:
                broadcast(group, tensor)
        except RuntimeError as error:  # torch's own: DistStoreError, DistBackendError, gloo's I/O errors
            raise WeightSyncError(
                f"version {version} did not reach all {num_receivers} receivers of group {group_name}: {error}"
            ) from error

    def retire(self, before: int) -> None:
        for version in [version for version in self._staged if version < before]:
            del self._staged[version]

    def close(self) -> None:
        self._staged.clear()


def join_group(
    store: torch.distributed.Store,
    name: str,
    rank: int,
    world_size: int,
    timeout: timedelta,
    receiver: Receiver = "native",
) -> torch.distributed.ProcessGroupGloo:
    """A gloo group that touches no default group; blocks until all members have joined."""
    from torch.distributed import PrefixStore, ProcessGroupGloo

    prefixed = PrefixStore(name, store)
    if receiver == "sglang":
        prefixed = PrefixStore("cpu/", PrefixStore(f"{name}/", prefixed))
    return ProcessGroupGloo(prefixed, rank, world_size, timeout)


def broadcast(group: torch.distributed.ProcessGroupGloo, tensor: Tensor) -> None:
    """Send (rank 0) or receive (others) one contiguous tensor in place."""
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([tensor], options).wait()


def buckets(manifest: WeightManifest, group_name: str) -> list[dict[str, Any]]:
    """Bodies of /update_weights_from_distributed: the manifest's tensors in order, cut at `bucket_bytes`."""
    limit, out, size = manifest.extra.get("bucket_bytes", BUCKET_BYTES), [], 0
    names = {word: name for name, word in SAFETENSORS_WORDS.items()}
    facts = {ADAPTER: manifest.extra[ADAPTER]} if ADAPTER in manifest.extra else {}
    for entry in manifest.tensors:
        if not out or size >= limit:
            out.append({"names": [], "dtypes": [], "shapes": [], "group_name": group_name} | facts)
            size = 0
        out[-1]["names"].append(entry.name)
        out[-1]["dtypes"].append(names[entry.dtype])
        out[-1]["shapes"].append(list(entry.shape))
        size += entry.num_bytes
    return out
