# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Small images, sounds and films as data URIs, from a seed, and the prompt ids that stand around them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from relax.data.media import decode

WRAP = {
    "image": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "video": ("<|vision_start|>", "<|video_pad|>", "<|vision_end|>"),
    "audio": ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"),
}


def png(seed: int, height: int = 32, width: int = 32) -> str:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return data_uri(file.getvalue(), "image/png")


def wav(seed: int, seconds: float = 1.3, rate: int = 16_000, channels: int = 1) -> str:
    """At least a second: plain HF pads a shorter clip differently when it is alone than in company."""
    samples = np.random.default_rng(seed).normal(size=(int(rate * seconds), channels)).astype(np.float32) * 0.1
    return data_uri(decode.encode_wav(samples, rate), "audio/wav")


def video(seed: int, frames: int = 8, height: int = 32, width: int = 32, fps: float = 2.0) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), np.uint8)
    return data_uri(decode.encode_frames(pixels, fps), "video/x-matroska")


MAKERS = {"image": png, "audio": wav, "video": video}


def data_uri(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def prompt_ids(tokenizer: Any, layout: str, kinds: Sequence[str], sentence: str) -> list[int]:
    """Unexpanded ids: each M of `layout` is one medium of the next kind, between its start and end token."""
    left = iter(kinds)
    text = "".join("".join(WRAP[next(left)]) if part == "M" else sentence for part in layout.split())
    return tokenizer(text)["input_ids"]
