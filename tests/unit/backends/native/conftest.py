# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tiny model folders and engines shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

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
