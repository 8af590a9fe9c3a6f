# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Encoder calls and placeholder rows of images, videos and audio clips.

Every encoder call ends in one dummy item (a grey image or a silent clip of full chunks) of at least `MIN_ROWS` tokens,
so that neither row counts nor chunk padding depend on which items share the call.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relax.backends.exact.segments import MIN_ROWS
from relax.utils.errors import ConfigError, DataError
from relax.utils.types import MediaFeatures


@dataclass(frozen=True)
class EncodedItem:
    """One media item in the text model's space."""

    kind: str
    embeds: Tensor  # [n, D]
    deepstack: tuple[Tensor, ...] = ()  # each [n, D], added after the first text layers; visual items only


@dataclass(frozen=True)
class PlacedItem:
    """An encoded item and the packed rows that it fills, in order."""

    item: EncodedItem
    rows: np.ndarray  # [n] int64


def encode_visual(tower: nn.Module, features: Sequence[MediaFeatures]) -> list[EncodedItem]:
    """One call of the vision tower over `features` (images or videos) and the dummy image."""
    merge = tower.spatial_merge_size
    pixels, grids = [], []
    for item in features:
        prefix = "video" if item.kind == "video" else "image"
        pixels.append(_tensor(item, "pixel_values_videos" if prefix == "video" else "pixel_values"))
        grids.append(_tensor(item, f"{prefix}_grid_thw").long().reshape(3))
    width = pixels[0].shape[-1] if pixels else patch_width(tower)
    side = merge * math.isqrt(MIN_ROWS)
    pixels.append(torch.zeros(side * side, width))
    grids.append(torch.tensor([1, side, side]))
    parameter = next(tower.parameters())
    grid = torch.stack(grids).to(parameter.device)
    out = tower(torch.cat(pixels).to(parameter.device, parameter.dtype), grid_thw=grid, return_dict=True)
    sizes = (grid.prod(-1) // merge**2).tolist()
    embeds = out.pooler_output.split(sizes)
    layers = [layer.split(sizes) for layer in getattr(out, "deepstack_features", None) or ()]
    kinds = [*(f.kind for f in features), "image"]
    return [EncodedItem(kinds[i], embeds[i], tuple(layer[i] for layer in layers)) for i in range(len(kinds))]


def encode_audio(tower: nn.Module, features: Sequence[MediaFeatures]) -> list[EncodedItem]:
    """One call of the audio tower over `features` and a silent clip of full chunks."""
    clips = [_tensor(item, "input_features") for item in features]
    mels = clips[0].shape[0] if clips else tower.num_mel_bins
    chunk = 2 * tower.n_window
    clips.append(torch.zeros(mels, chunk * -(-MIN_ROWS // audio_tokens(chunk, tower.n_window))))
    parameter = next(tower.parameters())
    lengths = torch.tensor([clip.shape[1] for clip in clips], device=parameter.device)
    frames = torch.cat(clips, 1).to(parameter.device, parameter.dtype)
    out = tower(frames, feature_lens=lengths, return_dict=True)
    sizes = [audio_tokens(clip.shape[1], tower.n_window) for clip in clips]
    return [EncodedItem("audio", embeds) for embeds in out.last_hidden_state.split(sizes)]


def audio_tokens(frames: int, half_chunk: int) -> int:
    """Tokens of a clip: three convolutions of stride two over each chunk of `2 * half_chunk` frames."""
    whole, tail = divmod(frames, 2 * half_chunk)
    halve = lambda length: (length + 1) // 2  # noqa: E731
    return whole * halve(halve(halve(2 * half_chunk))) + halve(halve(halve(tail)))


def _tensor(item: MediaFeatures, name: str) -> Tensor:
    if name not in item.tensors:
        raise DataError(f"{item.kind} {item.sha256[:12]}: features hold {sorted(item.tensors)}, {name} is missing")
    # Blocks of the bus are read-only, which torch's tensors cannot be: only those are copied.
    return torch.from_numpy(np.require(item.tensors[name], requirements=("C", "W")))


def patch_width(tower: nn.Module) -> int:
    """Numbers of one patch."""
    config = tower.config
    return config.in_channels * config.temporal_patch_size * config.patch_size**2


def placeholder_ids(config: object) -> dict[str, int]:
    """Placeholder id of each modality that the model knows."""
    ids = {}
    for kind in ("image", "video", "audio"):
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if getattr(config, name, None) is not None:
                ids[kind] = int(getattr(config, name))
    return ids


class MediaMarks:
    """What of a sequence decides where its media lie: special ids at their places, and the shape of each item."""

    def __init__(self, config: Any, vocabulary: int) -> None:
        named = {k: v for k, v in config.to_dict().items() if k.endswith(("_token_id", "_token_index"))}
        self._special = _table(vocabulary, named.values())
        self._placeholder = _table(vocabulary, placeholder_ids(config).values())

    def any_placeholder(self, tokens: np.ndarray) -> bool:
        return bool(self._placeholder[tokens].any())

    def before_media(self, tokens: np.ndarray) -> int:
        """Tokens in front of the first special id."""
        marked = np.flatnonzero(self._special[np.asarray(tokens, np.int64)])
        return int(marked[0]) if len(marked) else len(tokens)

    def layout(self, tokens: np.ndarray, features: Sequence[MediaFeatures]) -> Hashable:
        """Equal for sequences with equal rotary positions and placeholder rows."""
        tokens = np.asarray(tokens, np.int64)
        return np.where(self._special[tokens], tokens, -1).tobytes(), tuple(_shape(item) for item in features)


def _table(vocabulary: int, ids: Iterable[Any]) -> np.ndarray:
    """Bool by token id."""
    table = np.zeros(vocabulary, np.bool_)
    table[[i for i in ids if type(i) is int and 0 <= i < vocabulary]] = True
    return table


def _shape(item: MediaFeatures) -> Hashable:
    """All of an item but its content: small arrays (grids, seconds) whole, large ones by their shape."""
    arrays = ((n, a.tobytes() if a.size <= 8 else a.shape) for n, a in item.tensors.items())
    return item.kind, item.num_tokens, *arrays


def media_rows(tokens: np.ndarray, features: Sequence[MediaFeatures], ids: dict[str, int]) -> list[np.ndarray]:
    """Rows of `tokens` that each item fills: the next `num_tokens` placeholders of its kind, in order."""
    tokens = np.asarray(tokens)
    places, used, rows = {}, dict.fromkeys(ids, 0), []
    for item in features:
        if item.kind not in ids:
            raise ConfigError(f"the model has no {item.kind} input, but a row holds {item.kind} data")
        if item.kind not in places:
            places[item.kind] = np.flatnonzero(tokens == ids[item.kind])
        start = used[item.kind]
        used[item.kind] = start + item.num_tokens
        rows.append(places[item.kind][start : start + item.num_tokens])
    for kind, token in ids.items():
        found = len(places[kind]) if kind in places else int((tokens == token).sum())
        if found != used[kind]:
            raise DataError(
                f"{found} {kind} placeholder tokens (id {token}) for {kind} features of {used[kind]} tokens: "
                f"suppress placeholder ids when sampling, and expand each item to its own token count"
            )
    return rows
