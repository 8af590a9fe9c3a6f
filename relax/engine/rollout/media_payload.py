# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Media items as the data URIs that engines take (`image_data`, `video_data`, `audio_data`)."""

from __future__ import annotations

import base64
import io
import mimetypes
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax.utils.errors import DataError

_MAGIC = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
)
_DEFAULT = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
_KEPT = 256  # prompts whose payload stays in memory: the siblings of a group are sent at about the same time


class MediaPayloads:
    """Encodes each prompt's media once: the samples of a group share one `multimodal_inputs` object."""

    def __init__(self, keep: int = _KEPT) -> None:
        self._keep = keep
        self._payloads: OrderedDict[int, tuple[Any, dict[str, list[str]]]] = OrderedDict()

    def get(self, inputs: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
        """`{modality}_data` lists of data URIs for a sample's `multimodal_inputs`."""
        key = id(inputs)
        held = self._payloads.get(key)
        if held is None or held[0] is not inputs:
            held = (
                inputs,
                {f"{kind}_data": [data_uri(i, kind) for i in items] for kind, items in inputs.items() if items},
            )
            self._payloads[key] = held
        self._payloads.move_to_end(key)
        while len(self._payloads) > self._keep:
            self._payloads.popitem(last=False)
        return held[1]


def data_uri(item: Any, kind: str) -> str:
    """One item (bytes, path, URL, `{"bytes", "path"}`, PIL image) as a data URI; web URLs stay as they are."""
    if isinstance(item, Mapping):
        item = item.get("bytes") or item.get("path")
    if isinstance(item, (bytes, bytearray, memoryview)):
        data = bytes(item)
        return _uri(data, _sniff(data, kind))
    if isinstance(item, str) and item.startswith(("data:", "http://", "https://")):
        return item
    if isinstance(item, (str, Path)):
        path = Path(str(item).removeprefix("file://"))
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {kind} {path}: {error.strerror}") from error
        return _uri(data, mimetypes.guess_type(path.name)[0] or _sniff(data, kind))
    if hasattr(item, "save") and kind == "image":  # a PIL image; PNG keeps its pixels
        buffer = io.BytesIO()
        item.save(buffer, format="PNG")
        return _uri(buffer.getvalue(), "image/png")
    raise DataError(f"a {type(item).__name__} is no {kind}: use bytes, a path, a URL or a dict with bytes or path")


def _uri(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def _sniff(data: bytes, kind: str) -> str:
    return next((mime for magic, mime in _MAGIC if data.startswith(magic)), _DEFAULT[kind])
