# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The model's own HF processor, asked about one medium at a time.

The rollout side, the native engine and the trainer call this one class, so they hold the same features bit for bit.
Three rules make that so:

- An item is processed alone: a batch pads audio to its longest clip and changes the last frames of the others.
- Media are decoded here, once. Frames are sampled by `decode.sample_indices`, and the processor is told not to sample
  again; it gets the source's frame rate and frame numbers, from which it computes time stamps.
- Sizes come from the saved sub-processors. Some combined processors carry class-level sizes that override the saved
  ones (`Qwen3OmniMoeProcessor` would blow a clip of 4 x 56 x 56 pixels up to 338 tokens whatever its saved video
  processor says); each call here passes the saved size, unless `MediaOptions` sets another.

What a placeholder expands to is read off the processor's own text output for a prompt that is the placeholder alone,
so it is right for models that write more than pad ids (Qwen3-VL writes a time stamp before each video frame).
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax.data.media import decode, sglang_films
from relax.data.media.items import MediaItem
from relax.data.model_files import tokenizer_lock
from relax.utils.errors import ConfigError, DataError
from relax.utils.torchvision_shim import ensure_torchvision
from relax.utils.types import MODALITIES, MediaFeatures

# Names under which tokenizers and processors keep their media tokens.
_TOKEN_ATTRIBUTES = (
    "image_token",
    "video_token",
    "audio_token",
    "vision_bos_token",
    "vision_eos_token",
    "vision_start_token",
    "vision_end_token",
    "audio_bos_token",
    "audio_eos_token",
    "start_image_token",
    "end_image_token",
    "boi_token",
    "eoi_token",
)
# Media tokens that some models have without such an attribute.
_KNOWN_TOKENS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<|media_pad|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|AUDIO|>",
)
_TEXT_OUTPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "video_metadata"})
_PATCH_OUTPUTS = frozenset({"pixel_values", "pixel_values_videos"})  # [patches, dim] for models with a patch grid
_ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}


@dataclass(frozen=True)
class MediaOptions:
    """`--image-*`, `--video-*`, `--audio-*`, where None keeps what the saved processor says; and whose ways."""

    image_min_tokens: int | None = None
    image_max_tokens: int | None = None
    video_min_tokens: int | None = None  # of one frame; two successive frames share their tokens
    video_max_tokens: int | None = None
    video_fps: float = 2.0  # frames kept per second of source
    video_min_frames: int = 4
    video_max_frames: int = 768
    audio_sample_rate: int | None = None  # Hz; None: the feature extractor's own, else 16000
    as_sglang: bool = False  # films as SGLang hands them to the model, sounds at a rate that it leaves alone

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str, *, flag: str) -> MediaOptions:
        """What `to_json` wrote; `flag` is where `text` came from."""
        known = [field.name for field in dataclasses.fields(cls)]
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{flag} {text!r} is not JSON: {error}") from error
        if not isinstance(values, dict) or not set(values) <= set(known):
            raise ConfigError(f"{flag} {text!r} must be a JSON object with keys of {', '.join(known)}")
        return cls(**values)


class MediaProcessor:
    """Features, token counts and placeholder expansion for one model. Deterministic; safe to call from threads.

    `processor` is the model's HF processor, or None for a text-only model, which has no placeholders. Features of the
    last used items are kept, up to `cache_bytes`.
    """

    def __init__(
        self,
        processor: Any | None,
        options: MediaOptions | None = None,
        *,
        tokenizer: Any | None = None,
        cache_bytes: int = 256 << 20,
    ) -> None:
        if processor is not None:
            ensure_torchvision()
        self._processor: Any = processor
        self._options = options or MediaOptions()
        self._tokenizer: Any = tokenizer if tokenizer is not None else getattr(processor, "tokenizer", None)
        # The tokenizer that the processor itself enters, and the lock that every other user of it takes too.
        self._inside: Any = getattr(processor, "tokenizer", self._tokenizer)
        self._lock = threading.RLock() if self._inside is None else tokenizer_lock(self._inside)
        self._cache = _FeatureCache(cache_bytes)
        self.placeholder_ids: dict[str, int] = self._find_placeholders()
        self.suppressed_ids: tuple[int, ...] = self._find_suppressed()

    def __getstate__(self) -> dict[str, Any]:
        return {"processor": self._processor, "options": self._options, "tokenizer": self._tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        MediaProcessor.__init__(self, state["processor"], state["options"], tokenizer=state["tokenizer"])

    @property
    def processor(self) -> Any | None:
        return self._processor

    @property
    def kinds(self) -> tuple[str, ...]:
        """Modalities that the model reads."""
        return tuple(self.placeholder_ids)

    def as_sent(self, item: MediaItem, *, where: str) -> MediaItem:
        """The item as the engine is to get it: for SGLang, which has another resampling filter, sounds are the samples
        that the trainer hears."""
        if item.kind != "audio" or not self._options.as_sglang:
            return item
        return MediaItem.of("audio", decode.at_rate(item.data, self._audio_rate, where=where, name=item.uri), item.uri)

    def extract(self, item: MediaItem, *, where: str | None = None) -> MediaFeatures:
        """Processor output of one item alone, without batch dimension. `where` names the row in errors."""
        place = where or item.uri or item.sha256[:12]
        if item.kind not in self.placeholder_ids:
            known = ", ".join(self.kinds) or "text only"
            raise DataError(f"the model's processor reads no {item.kind} (it reads: {known})", where=place)
        return self._cache.get((item.sha256, item.kind), lambda: self._extract(item, place))

    def expand(
        self, token_ids: Sequence[int], features: Sequence[MediaFeatures], *, where: str | None = None
    ) -> list[int]:
        """Replace the k-th placeholder by what the k-th item takes. Raises DataError when counts or kinds differ."""
        kinds = {token: kind for kind, token in self.placeholder_ids.items()}
        found = [kinds[token] for token in token_ids if token in kinds]
        given = [item.kind for item in features]
        if found != given:
            message = f"the prompt has placeholders for {_counts(found)}, the row's media are {_counts(given)}"
            raise DataError(message, where=where)
        items = iter(features)
        out: list[int] = []
        for token in token_ids:
            if token in kinds:
                item = next(items)
                out.extend(item.expansion or (token,) * item.num_tokens)
            else:
                out.append(token)
        return out

    def spans(self, token_ids: Sequence[int], features: Sequence[MediaFeatures]) -> list[int]:
        """Length in the expanded prompt of each unexpanded id."""
        kinds = {token: kind for kind, token in self.placeholder_ids.items()}
        items = iter(features)
        return [len_expansion(next(items)) if token in kinds else 1 for token in token_ids]

    # ----------------------------------------------------------------- one item

    def _extract(self, item: MediaItem, where: str) -> MediaFeatures:
        value, extra = getattr(self, f"_{item.kind}_call")(item, where)
        token = self._placeholder_text(item.kind)
        try:
            with self._lock:
                output = self._processor(
                    text=[token], **{_ARGUMENTS[item.kind]: [value]}, return_tensors="pt", **extra
                )
        except (ValueError, TypeError, RuntimeError, ZeroDivisionError, IndexError) as error:
            name = f" {item.uri}" if item.uri else ""
            raise DataError(f"the model's processor refuses the {item.kind}{name}: {error}", where=where) from error
        ids = [int(token_id) for token_id in np.asarray(output["input_ids"][0])]
        grid = any(name.endswith("grid_thw") for name in output)
        tensors = {
            name: _without_batch(name, value, grid) for name, value in output.items() if name not in _TEXT_OUTPUTS
        }
        pad = self.placeholder_ids[item.kind]
        ids = self._inner(ids, pad)
        plain = all(token_id == pad for token_id in ids)
        return MediaFeatures(
            kind=item.kind,
            sha256=item.sha256,
            tensors=tensors,
            num_tokens=ids.count(pad),
            expansion=() if plain else tuple(ids),
        )

    def _inner(self, ids: list[int], pad: int) -> list[int]:
        """The expansion without what the tokenizer adds to any text (BOS, EOS)."""
        if self._inside is None or pad not in ids:
            return ids
        with self._lock:
            added = len(self._inside("")["input_ids"])
        if not added:
            return ids
        bos, eos = self._inside.bos_token_id, self._inside.eos_token_id
        start = 1 if ids and ids[0] == bos else 0
        stop = len(ids) - 1 if ids and ids[-1] == eos else len(ids)
        return ids[start:stop]

    def _image_call(self, item: MediaItem, where: str) -> tuple[Any, dict[str, Any]]:
        image = decode.decode_image(item.data, where=where, name=item.uri)
        size = self._size("image", self._options.image_min_tokens, self._options.image_max_tokens, 1)
        return image, {"images_kwargs": {"size": size}} if size else {}

    def _audio_call(self, item: MediaItem, where: str) -> tuple[Any, dict[str, Any]]:
        samples = decode.decode_audio(item.data, where=where, rate=self._audio_rate, name=item.uri)
        return samples, {"audio_kwargs": {"sampling_rate": self._audio_rate}}

    @property
    def _audio_rate(self) -> int:
        extractor = getattr(self._processor, "feature_extractor", None)
        return self._options.audio_sample_rate or getattr(extractor, "sampling_rate", None) or 16_000

    def _video_call(self, item: MediaItem, where: str) -> tuple[Any, dict[str, Any]]:
        from transformers.video_utils import VideoMetadata

        sub = self._processor.video_processor
        video = decode.decode_video(
            item.data,
            where=where,
            fps=self._options.video_fps,
            min_frames=self._options.video_min_frames,
            max_frames=self._options.video_max_frames,
            factor=getattr(sub, "temporal_patch_size", 1) or 1,
            sample=sglang_films.frame_numbers if self._options.as_sglang else decode.sample_indices,
            name=item.uri,
        )
        frames = sglang_films.resized(video.frames) if self._options.as_sglang else video.frames
        metadata = VideoMetadata(
            total_num_frames=video.total,
            fps=video.source_fps,
            height=frames.shape[1],
            width=frames.shape[2],
            duration=video.total / video.source_fps,
            frames_indices=list(video.indices),
        )
        call: dict[str, Any] = {"do_sample_frames": False, "video_metadata": [metadata]}
        if hasattr(self._processor, "seconds_per_chunk") and not self._options.as_sglang:
            call["fps"] = video.sampled_fps  # omni processors take the seconds per grid from it, not from the metadata
        # Qwen3-VL counts the pixels of all frames, the others those of one.
        counted = len(frames) if type(sub).__name__.startswith("Qwen3VL") else 1
        size = self._size("video", self._options.video_min_tokens, self._options.video_max_tokens, counted)
        if size:
            call["size"] = size
        if hasattr(sub, "cap_pixels_per_frame") and sub.cap_pixels_per_frame is None:
            call["cap_pixels_per_frame"] = False  # the library's present default, fixed because it will change
        return frames, {"videos_kwargs": call}

    def _size(self, kind: str, min_tokens: int | None, max_tokens: int | None, frames: int) -> dict[str, int] | None:
        """The size to pass: the saved one, with limits in tokens of an image or a video frame turned into pixels."""
        sub = getattr(self._processor, f"{kind}_processor")
        saved = {name: value for name, value in dict(getattr(sub, "size", None) or {}).items() if value is not None}
        if min_tokens is None and max_tokens is None:
            return saved if kind == "video" and saved else None
        if "shortest_edge" not in saved or not hasattr(sub, "merge_size"):
            raise ConfigError(
                f"--{kind}-min-tokens / --{kind}-max-tokens do not apply to {type(sub).__name__}: its size is "
                f"{saved}, not a range of pixels; leave them out"
            )
        pixels = (sub.patch_size * sub.merge_size) ** 2 * frames
        return limited_size(kind, saved, pixels, min_tokens, max_tokens)

    # ----------------------------------------------------------------- token ids

    def _placeholder_text(self, kind: str) -> str:
        token = getattr(self._processor, f"{kind}_token", None)
        return token if isinstance(token, str) else self._tokenizer.convert_ids_to_tokens(self.placeholder_ids[kind])

    def _find_placeholders(self) -> dict[str, int]:
        if self._processor is None:
            return {}
        parts = {
            "image": getattr(self._processor, "image_processor", None),
            "video": getattr(self._processor, "video_processor", None),
            "audio": getattr(self._processor, "feature_extractor", None),
        }
        found = {}
        for kind in MODALITIES:
            token = getattr(self._processor, f"{kind}_token", None)
            token_id = _single_id(self._tokenizer, token)
            if parts[kind] is not None and token_id is not None:
                found[kind] = token_id
        return found

    def _find_suppressed(self) -> tuple[int, ...]:
        """Ids of every medium's placeholder, start and end. A sampled one would make a training forward look for
        features that do not exist. Empty for a text-only model, whose sampling stays untouched."""
        if self._processor is None:
            return ()
        owners = (self._processor, self._tokenizer)
        names = [getattr(owner, name, None) for owner in owners for name in _TOKEN_ATTRIBUTES]
        ids = {_single_id(self._tokenizer, name) for name in (*names, *_KNOWN_TOKENS)}
        special = {self._tokenizer.eos_token_id, self._tokenizer.pad_token_id, self._tokenizer.bos_token_id}
        return tuple(sorted(token_id for token_id in ids - special if token_id is not None))


def limited_size(
    kind: str, saved: Mapping[str, int], pixels: int, min_tokens: int | None, max_tokens: int | None
) -> dict[str, int]:
    """The range of pixels for limits in tokens of `pixels` pixels each; a limit that is not given is the saved one."""
    low = saved["shortest_edge"] if min_tokens is None else min_tokens * pixels
    high = saved["longest_edge"] if max_tokens is None else max_tokens * pixels
    if low <= high:
        return {"shortest_edge": low, "longest_edge": high}
    least, most = f"--{kind}-min-tokens {min_tokens}", f"--{kind}-max-tokens {max_tokens}"
    if max_tokens is None:
        raise ConfigError(
            f"{least} is above the most that the saved processor of --hf-checkpoint allows, {high // pixels}: lower "
            f"it, or give --{kind}-max-tokens too"
        )
    if min_tokens is None:
        raise ConfigError(
            f"{most} is below the least that the saved processor of --hf-checkpoint allows, {-(-low // pixels)}: "
            f"raise it, or give --{kind}-min-tokens too"
        )
    raise ConfigError(f"{least} is above {most}")


def len_expansion(item: MediaFeatures) -> int:
    """Ids that the item takes in the expanded prompt, time stamps and frame marks included."""
    return len(item.expansion) or item.num_tokens


def _single_id(tokenizer: Any, token: Any) -> int | None:
    if tokenizer is None or not isinstance(token, str):
        return None
    token_id = tokenizer.convert_tokens_to_ids(token)
    return token_id if isinstance(token_id, int) and token_id >= 0 and token_id != tokenizer.unk_token_id else None


def _without_batch(name: str, value: Any, grid: bool) -> np.ndarray:
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if name in _PATCH_OUTPUTS and grid and array.ndim == 2:
        return np.ascontiguousarray(array)
    if array.ndim > 1 and len(array) > 1:  # the crops of one image stay together
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array[0]) if array.ndim > 1 else np.asarray(array[0])


def _counts(kinds: Sequence[str]) -> str:
    """`2 image, 1 audio (in the order image, audio, image)`, or `no media`."""
    total = ", ".join(f"{kinds.count(kind)} {kind}" for kind in MODALITIES if kind in kinds)
    order = f" (in the order {', '.join(kinds)})" if len(set(kinds)) > 1 else ""
    return total + order if kinds else "no media"


class _FeatureCache:
    """Last used features up to `limit` bytes. Two threads that miss at once both compute: the results are equal."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[str, str], MediaFeatures] = OrderedDict()
        self._held = 0

    def get(self, key: tuple[str, str], compute: Callable[[], MediaFeatures]) -> MediaFeatures:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        features = compute()
        size = sum(array.nbytes for array in features.tensors.values())
        with self._lock:
            if key not in self._items and size <= self._limit:
                self._items[key] = features
                self._held += size
            while self._held > self._limit:
                _, freed = self._items.popitem(last=False)
                self._held -= sum(array.nbytes for array in freed.tensors.values())
        return features
