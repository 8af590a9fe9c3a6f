# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A sample's media as the engine takes them: `image_data`, `video_data`, `audio_data`, lists of data URIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax.data.media.items import load_media


def media_payload(inputs: Mapping[str, Sequence[Any]] | None, *, where: str) -> dict[str, list[str]]:
    """`{modality}_data` of a sample's `multimodal_inputs`, items of a modality in order of appearance.

    The items that a data source prepared are `MediaItem`s, encoded once for all samples of a group. Other forms that
    a user function leaves (bytes, a path, a URL, a PIL image, `{"bytes", "path"}`) are read here.
    """
    return {
        f"{kind}_data": [load_media(kind, item, folder=Path(), where=where).data_uri() for item in items]
        for kind, items in (inputs or {}).items()
        if items
    }
