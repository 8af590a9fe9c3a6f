# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One engine process for all tests of this folder: the native engine, or what RELAX_CONFORMANCE_ENGINE names.

    RELAX_CONFORMANCE_ENGINE=sglang RELAX_SGLANG_PYTHON=.venv-sglang/bin/python pytest tests/conformance

The model is a tiny Qwen3-Omni with experts, in the form that both engines serve.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from examples.quickstart.model import write_sglang_form
from relax.backends.base import EngineConfig, EngineSpec
from relax.backends.conformance.context import Context
from relax.backends.engine_client import HttpEngineClient
from relax.backends.engine_process import EngineProcess
from relax.backends.native.spec import NativeEngine
from relax.backends.sglang.spec import SglangEngine
from relax.data.media.suppressed import suppressed_ids_of
from relax.schedule.clock import RealClock
from tests.builders import build_tiny_model_folder

ENGINES: dict[str, type[EngineSpec]] = {"native": NativeEngine, "sglang": SglangEngine}
START_TIMEOUT_S = 500.0
CALL_TIMEOUT_S = 100.0


@pytest.fixture(scope="session")
def engine_name() -> str:
    return os.environ.get("RELAX_CONFORMANCE_ENGINE", "native")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("conformance")
    thinker = build_tiny_model_folder(root / "thinker", "qwen3_omni_moe", seed=1)
    write_sglang_form(thinker, root / "model")
    return root / "model"


@pytest.fixture(scope="session")
def engine(engine_name: str, model_folder: Path) -> Iterator[EngineProcess]:
    torch.set_num_threads(1)
    log = model_folder.parent / "engine.log"
    told = suppressed_ids_of(model_folder) if engine_name == "sglang" else None  # as a run does
    config = EngineConfig(
        model_folder, suppressed_ids=told, max_running_requests=64, max_total_tokens=16384, log_path=log
    )
    process = EngineProcess(ENGINES[engine_name](), config, clock=RealClock(), start_timeout_s=START_TIMEOUT_S)
    asyncio.run(process.start())
    yield process
    asyncio.run(process.stop())


@pytest.fixture(scope="session")
def shared_context(engine: EngineProcess, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Context:
    """Models of the plain forward are loaded once; its client belongs to no event loop."""

    async def make() -> Context:
        client = HttpEngineClient(engine.url, timeout_s=CALL_TIMEOUT_S)
        try:
            work = tmp_path_factory.mktemp("versions")
            return Context(client, await client.info(), folder=model_folder, may_update=True, work=work)
        finally:
            await client.close()

    return asyncio.run(make())


@pytest.fixture
async def context(shared_context: Context):
    """The same context with a client of this test's event loop."""
    shared_context.client = HttpEngineClient(shared_context.client.url, timeout_s=CALL_TIMEOUT_S)
    yield shared_context
    await shared_context.client.close()
