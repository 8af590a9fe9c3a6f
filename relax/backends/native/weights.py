# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""New weights: collected and checked aside, then handed over whole. The old ones serve until then.

begin  ->  stage (folder, safetensors text, or broadcast; several times)  ->  take: complete, or refused

What is staged is the whole model, or an adapter by itself (`adapters.MergedAdapters`).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax.backends.exact.low_rank import adapted_matrix
from relax.backends.native.adapters import MergedAdapters, facts_of
from relax.backends.native.layout import input_major
from relax.backends.native.protocol import RequestError
from relax.distributed.checkpoint_service.base import AdapterFacts, WeightManifest
from relax.distributed.checkpoint_service.publishers import MANIFEST, check_tensors
from relax.utils.errors import WeightSyncError

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
_EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight$")


@dataclass(frozen=True)
class WeightLayout:
    """Names and shapes that a model's weights must have.

    `optional` names are tied to another tensor; `turned` ones lie input by input (`layout.input_major`).
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    optional: frozenset[str]
    turned: frozenset[str] = frozenset()


class WeightStaging:
    """One update at a time. Every error leaves the serving weights as they are."""

    def __init__(self, layout: WeightLayout, in_force: Callable[[], Mapping[str, Tensor]] = dict) -> None:
        """`in_force()`: the weights that serve, by name; an adapter by itself is added to them."""
        self._layout = layout
        self._adapters = MergedAdapters(in_force)
        self._staged: dict[str, Tensor] | None = None
        self._facts: AdapterFacts | None = None  # of the adapter that is being staged
        self._groups: dict[str, torch.distributed.ProcessGroupGloo] = {}

    @property
    def is_open(self) -> bool:
        return self._staged is not None

    def begin(self) -> None:
        """Open an update. One that was abandoned half-way is dropped: its sender is gone."""
        self._staged, self._facts = {}, None

    def drop(self) -> None:
        """Forget what was staged and close the update."""
        self._staged = self._facts = None

    def take(self) -> dict[str, Tensor]:
        """What is to be installed, closing the update; refused (and dropped) when a name is missing."""
        staged, facts = self._require_open("end_weight_update"), self._facts
        self.drop()
        if not staged:
            raise RequestError("end_weight_update: no weights were sent; the old weights and their version stay")
        if facts is not None:
            merged = self._adapters.merge(staged, facts)
            turned = self._layout.turned
            return {name: input_major(t) if name in turned else t for name, t in merged.items()}
        missing = sorted(set(self._layout.shapes) - set(staged) - self._layout.optional)
        if missing:
            raise RequestError(
                f"end_weight_update: {len(missing)} of {len(self._layout.shapes)} tensors were not sent, "
                f"for example {missing[:3]}; the old weights stay"
            )
        self._adapters.forget()
        return staged

    # ------------------------------------------------------------------ sources

    def stage_folder(self, folder: Path, version: str | None) -> None:
        """All safetensors files of a folder, checked against `manifest.json` when the folder has one."""
        self._require_open("update_weights_from_disk")
        manifest = _manifest(folder)
        if manifest is not None and version is not None and str(manifest.version) != version:
            raise RequestError(
                f"update_weights_from_disk: weight_version={version} but {folder} holds version {manifest.version}"
            )
        tensors = dict(_folder_tensors(folder))
        if manifest is not None:
            try:
                check_tensors(manifest, tensors, source=str(folder))
            except WeightSyncError as error:
                raise RequestError(f"update_weights_from_disk: {error}; the old weights stay") from error
            if manifest.adapter is not None:
                self._add_adapter(tensors, manifest.adapter)
                return
        checked = self._checked(tensors)
        missing = sorted(set(self._layout.shapes) - set(checked) - self._layout.optional)
        if missing:
            raise RequestError(
                f"update_weights_from_disk: {folder} lacks {len(missing)} tensors, for example {missing[:3]}; "
                f"the old weights stay"
            )
        self._add(checked)

    def stage_blobs(self, blobs: Sequence[str], adapter: Any = None) -> None:
        """Tensors as base64 of safetensors bytes. `adapter`: facts of the adapter that they are, as JSON."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        self._require_open("update_weights_from_tensor")
        tensors: dict[str, Tensor] = {}
        for place, blob in enumerate(blobs):
            try:
                tensors.update(load(base64.b64decode(blob, validate=True)))
            except (binascii.Error, SafetensorError, ValueError) as error:
                raise RequestError(
                    f"serialized_named_tensors[{place}] is not base64 of a safetensors file: {error}"
                ) from error
        if adapter is not None:
            self._add_adapter(tensors, facts_of(adapter))
        else:
            self._add(self._checked(tensors))

    def stage_broadcast(
        self, group: str, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Any], adapter: Any = None
    ) -> None:
        """Receive tensors that rank 0 of `group` broadcasts, in the order of `names`. Blocks.

        `adapter`: facts of the adapter that they are, as JSON.
        """
        facts = None if adapter is None else facts_of(adapter)
        self._require_open("update_weights_from_distributed")
        if group not in self._groups:
            raise RequestError(f"group_name {group!r} is not known; call /init_weights_update_group first")
        if not len(names) == len(dtypes) == len(shapes):
            raise RequestError(
                f"names, dtypes and shapes differ in length: {len(names)}, {len(dtypes)}, {len(shapes)}"
            )
        for name, shape in zip(names, shapes, strict=True):
            self._check_announced(name, tuple(shape), facts)
        received = {}
        for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
            tensor = torch.empty(tuple(shape), dtype=_dtype(dtype))
            _broadcast(self._groups[group], tensor)
            received[name] = tensor
        if facts is not None:
            self._add_adapter(received, facts)
        else:
            self._add(self._checked(received))

    # ------------------------------------------------------------------ groups

    def open_group(
        self, name: str, address: str, port: int, rank: int, world_size: int, backend: str, timeout_s: float
    ) -> None:
        """Join a gloo group whose rank 0 sends weights. Blocks until all members have joined."""
        if backend != "gloo":
            raise RequestError(f"backend {backend!r} is not available in the native engine; use gloo")
        if name in self._groups:
            raise RequestError(f"group_name {name!r} exists; call /destroy_weights_update_group first")
        distributed, timeout = torch.distributed, timedelta(seconds=timeout_s)
        store = distributed.TCPStore(address, port, world_size, is_master=False, timeout=timeout)
        self._groups[name] = distributed.ProcessGroupGloo(
            distributed.PrefixStore(name, store), rank, world_size, timeout
        )

    def close_group(self, name: str) -> None:
        if self._groups.pop(name, None) is None:
            raise RequestError(f"group_name {name!r} is not known")

    # ------------------------------------------------------------------ checks

    def _require_open(self, call: str) -> dict[str, Tensor]:
        if self._staged is None:
            raise RequestError(f"{call} must run between /begin_weight_update and /end_weight_update")
        return self._staged

    def _add(self, tensors: dict[str, Tensor]) -> None:
        staged = self._require_open("the weight update")
        if self._facts is not None:
            raise RequestError(f"{next(iter(tensors))!r} is no part of the adapter that this update began with")
        staged.update(tensors)

    def _add_adapter(self, tensors: Mapping[str, Tensor], facts: AdapterFacts) -> None:
        staged = self._require_open("the weight update")
        if staged and self._facts != facts:
            raise RequestError("an update holds the whole model or one adapter, not both; the old weights stay")
        for name, tensor in tensors.items():
            self._check_announced(name, tuple(tensor.shape), facts)
        self._facts = facts
        staged.update({name: tensor.clone() for name, tensor in tensors.items()})  # a mapped file may change

    def _checked(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Model names, checked shapes, own memory, the model's dtypes."""
        named = _model_names(tensors, self._layout)
        for name, tensor in named.items():
            self._check_shape(name, tuple(tensor.shape))
        dtypes, turned = self._layout.dtypes, self._layout.turned
        return {name: _owned(tensor, dtypes[name], turn=name in turned) for name, tensor in named.items()}

    def _check_announced(self, name: str, shape: tuple[int, ...], facts: AdapterFacts | None) -> None:
        """Of a tensor of the model, or with `facts` of an adapter."""
        place = None if facts is None else adapted_matrix(name)
        if facts is None:
            self._check_shape(name, shape)
        elif place is None:
            raise RequestError(f"tensor {name!r} has no name of an adapter's tensor in peft; the old weights stay")
        else:
            self._adapters.check_shape(name, shape, self._layout.shapes.get(place[0]), facts)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        expected = self._layout.shapes.get(name)
        if expected is None:
            raise RequestError(f"tensor {name!r} is not in this model; the old weights stay")
        if tuple(expected) != shape:
            raise RequestError(
                f"tensor {name!r} has shape {list(shape)}, this model has {list(expected)}; the old weights stay"
            )


def _manifest(folder: Path) -> WeightManifest | None:
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        return WeightManifest.from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} is not a weight manifest: {error!r}") from error


def _folder_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RequestError(f"model_path {folder} has no .safetensors file")
    for file in files:
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 - not a dict
                    yield name, handle.get_tensor(name)
        except SafetensorError as error:
            raise RequestError(f"{file} is not a safetensors file: {error}") from error


def _model_names(tensors: Mapping[str, Tensor], layout: WeightLayout) -> dict[str, Tensor]:
    """Checkpoint names -> the model's own, with per-expert matrices fused."""
    known = layout.shapes
    out: dict[str, Tensor] = {}
    experts: dict[str, dict[str, dict[int, Tensor]]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.match(name)
        if name in known or match is None:
            out[_model_name(name, known)] = tensor
        else:
            experts.setdefault(match[1], {}).setdefault(match[3], {})[int(match[2])] = tensor
    for base, kinds in experts.items():
        base = _model_name(f"{base}.down_proj", known).removesuffix(".down_proj")
        try:
            stacked = {kind: torch.stack([of[i] for i in range(len(of))]) for kind, of in kinds.items()}
            out[f"{base}.gate_up_proj"] = torch.cat([stacked["gate_proj"], stacked["up_proj"]], dim=1)
            out[f"{base}.down_proj"] = stacked["down_proj"]
        except (KeyError, RuntimeError) as error:
            raise RequestError(f"the experts of {base} are incomplete or differ in shape: {error}") from error
    return out


def _model_name(name: str, known: Mapping[str, Any]) -> str:
    """Checkpoints of omni models lack the wrapper's `model.`, carry `thinker.`, or call the text model `model.`."""
    short = name.removeprefix("thinker.")
    text = "model.language_model." + short.removeprefix("model.").removeprefix("language_model.")
    return next((candidate for candidate in (name, short, f"model.{short}", text) if candidate in known), name)


def _owned(tensor: Tensor, dtype: torch.dtype, *, turn: bool) -> Tensor:
    """A copy in memory of our own: a mapped file may change, and aligned memory keeps the bits."""
    return input_major(tensor.to(dtype)) if turn else tensor.to(dtype, copy=True).contiguous()


def _dtype(name: str) -> torch.dtype:
    dtype = _DTYPES.get(str(name).removeprefix("torch."))
    if dtype is None:
        raise RequestError(f"dtypes holds {name!r}; known are {sorted(_DTYPES)}")
    return dtype


def _broadcast(group: Any, tensor: Tensor) -> None:
    options = torch.distributed.BroadcastOptions()
    options.rootRank = 0
    group.broadcast([tensor], options).wait()
