# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Images of later turns in the real embedded engine: the trainer computes its log-probs again, bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from relax.backends.base import ModelSpec, Part
from relax.backends.engine_client import AsgiEngineClient
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.native.build import EngineSettings, build_app
from relax.config.view import HookArgs
from relax.data.columns import TrainSequence
from relax.data.media.suppressed import suppressed_ids_of
from relax.engine.rollout.turns import Turns
from relax.utils.http_utils import register_local, unregister_local
from relax.utils.types import Sample
from tests.builders import build_tiny_model_folder
from tests.service.deepeyes import generate as scripted
from tests.unit.engine.rollout.test_turns import MESSAGE, URL, call, make_args, prompt

SIZES = ((64, 32), (32, 64), (96, 96))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"), "qwen3_omni")


@pytest.fixture
async def client(model: Path) -> AsyncIterator[AsgiEngineClient]:
    client = AsgiEngineClient(build_app(EngineSettings(model, max_running_requests=8, max_total_tokens=4096)))
    register_local(URL, client)
    yield client
    unregister_local(URL)
    await client.close()


async def look_around(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Sample i sees i more pictures, other ones than its siblings."""
    turns = Turns(args, sample)
    for number in range((sample.index or 0) + 1):
        await turns.ask(sampling_params)
        if turns.ended or number == sample.index:
            break
        noise = np.random.default_rng(10 * (sample.index or 0) + number).integers(0, 256, (*SIZES[number][::-1], 3))
        await turns.observe(MESSAGE, [Image.fromarray(noise.astype(np.uint8))])
    return sample


async def generated(model: Path, index: int, function: Any = look_around, args: Any = None) -> Sample:
    sample = prompt()
    sample.index = index
    stops = list(range(20, 320, 3))
    return await call(function, args or make_args(model), sample, max_new_tokens=40, stop_token_ids=stops)


async def test_engine_and_trainer_agree_to_the_bit_after_images_of_later_turns(
    client: AsgiEngineClient, model: Path
) -> None:
    samples = await asyncio.gather(*(generated(model, index) for index in range(4)))
    assert [len(s.multimodal_train_inputs or ()) for s in samples] == [1, 2, 3, 4]
    assert_trainer_agrees(model, samples)


async def test_the_deepeyes_function_zooms_as_the_model_asks(client: AsgiEngineClient, model: Path) -> None:
    """Sample 0 answers at once; sample 1 has a script in its mouth and zooms twice into its picture of 32 x 32 pixels.

    The boxes are [0, 0, 32, 32], and [32, 16, 96, 80] of which the picture has nothing: an error that the model reads.
    """
    args = HookArgs(vars(make_args(model)) | {"max_turns": 3})
    samples = await asyncio.gather(*(generated(model, index, scripted, args) for index in range(2)))
    assert [s.metadata["deepeyes"] for s in samples] == [
        {"turns": 1, "tool_calls": 0, "tool_errors": 0},
        {"turns": 3, "tool_calls": 1, "tool_errors": 1},
    ]
    assert [item.num_tokens for item in samples[1].multimodal_train_inputs or ()] == [4, 4]
    assert "Error: x from 32 to 96 holds nothing of an image with 32 pixels." in samples[1].response
    assert_trainer_agrees(model, samples)


def assert_trainer_agrees(model: Path, samples: Sequence[Sample]) -> None:
    """To the bit, on every sampled token; the samples share a micro-batch."""
    rows = tuple(
        TrainSequence(
            7,
            s.index or 0,
            np.asarray(s.tokens, np.int32),
            s.prompt_length,
            np.asarray(s.loss_mask, np.uint8),
            media=tuple(s.multimodal_train_inputs or ()),
        )
        for s in samples
    )
    backend = FsdpBackend()
    backend.open(ModelSpec(model, temperature=1.0, suppressed_ids=suppressed_ids_of(model)), None)
    found = backend.score(Part((rows,)), frozenset({"log_probs"}))
    backend.close()
    for sample, row in zip(samples, rows, strict=True):
        sampled = row.loss_mask.astype(bool)
        assert sampled.any()
        engine = np.asarray(sample.rollout_log_probs, np.float32)
        assert (found[row.uid]["log_probs"][sampled] == engine[sampled]).all()
