# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tiny model folders and engines shared by the tests of this folder."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from relax.backends.engine_client import AsgiEngineClient
from relax.backends.native.build import EngineSettings, build_app
from tests.builders import build_tiny_model_folder


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("qwen3"), "qwen3", seed=1)


@pytest.fixture(scope="session")
def other_text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights."""
    return build_tiny_model_folder(tmp_path_factory.mktemp("qwen3b"), "qwen3", seed=2)


@pytest.fixture(scope="session")
def omni_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("omni"), "qwen3_omni", seed=1)


@pytest.fixture
def engine(text_folder: Path):
    """A function that opens an engine client; engines are closed at the end of the test."""
    apps = []

    def make(folder: Path = text_folder, **settings) -> AsgiEngineClient:
        app = build_app(EngineSettings(folder, **{"max_total_tokens": 4096, **settings}))
        apps.append(app)
        return AsgiEngineClient(app)

    yield make
    for app in apps:
        app.state.service.close()


def data_uri(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def png_uri(seed: int, height: int = 32, width: int = 32) -> str:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return data_uri(file.getvalue(), "image/png")


def wav_uri(seed: int, seconds: float = 1.3) -> str:
    import soundfile

    samples = np.random.default_rng(seed).normal(size=int(16_000 * seconds)).astype(np.float32) * 0.1
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    return data_uri(file.getvalue(), "audio/wav")


def video_uri(seed: int, frames: int = 8, size: int = 32) -> str:
    from relax.data.media import decode

    pixels = np.random.default_rng(seed).integers(0, 256, (frames, size, size, 3), np.uint8)
    return data_uri(decode.encode_frames(pixels, 2.0), "video/x-matroska")


MEDIA: dict[str, Callable[[int], str]] = {"image": png_uri, "audio": wav_uri, "video": video_uri}
