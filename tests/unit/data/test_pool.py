# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import asyncio
import functools
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from relax.data.chat import PromptBuilder
from relax.data.datasets import RawRow
from relax.data.media.processing import MediaProcessor
from relax.data.model_files import load_processor
from relax.data.pool import ProcessorPool, _packed, _unpacked
from relax.utils.errors import ConfigError, DataError, InfrastructureError
from tests.builders import tiny_omni_processor


def make_builder(folder: str) -> PromptBuilder:
    processor = load_processor(folder)
    return PromptBuilder(
        processor.tokenizer, MediaProcessor(processor), apply_chat_template=True, multimodal_keys={"image": "image"}
    )


def row(prompt: str = "<image>x", count: int = 1) -> RawRow:
    return RawRow(
        {"input": prompt, "image": [np.full((32, 32, 3), shade, np.uint8) for shade in range(count)]}, "a:1", Path("/")
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("omni")
    tiny_omni_processor().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def processes(folder):
    pool = ProcessorPool(1, setup=functools.partial(make_builder, folder))
    yield pool
    pool.close()


async def test_processes_and_threads_prepare_the_same_prompt(folder, processes):
    async with ProcessorPool(0, setup=functools.partial(make_builder, folder)) as threads:
        one = await threads.run(PromptBuilder.build, row("<image><image>x", 2))
    two = await processes.run(PromptBuilder.build, row("<image><image>x", 2))
    assert one.expanded_ids == two.expanded_ids and one.media == two.media
    for ours, theirs in zip(one.features, two.features, strict=True):
        assert ours.sha256 == theirs.sha256
        assert all(np.array_equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


async def test_errors_come_through_with_their_row(processes):
    with pytest.raises(DataError, match="a:1: the text has 0 <image>") as error:
        await processes.run(PromptBuilder.build, row("no place"))
    assert error.value.where == "a:1"


async def test_M11_the_event_loop_runs_on_while_prompts_are_prepared():
    release, beats = threading.Event(), 0
    async with ProcessorPool(0) as pool:
        running = asyncio.ensure_future(pool.run(release.wait))
        while beats < 50:
            await asyncio.sleep(0)
            beats += 1
        assert not running.done()
        release.set()
        assert await running is True


async def test_a_hanging_call_ends_at_its_deadline():
    release = threading.Event()
    async with ProcessorPool(0) as pool:
        with pytest.raises(InfrastructureError, match=r"more than 0\.01 s"):
            await pool.run(release.wait, timeout_s=0.01)
        release.set()


def test_arrays_travel_in_shared_memory_and_the_block_is_gone_afterwards():
    value = {"a": np.arange(10_000, dtype=np.float32), "b": [np.ones((2, 3)), "text"], "empty": np.zeros(0)}
    packed = _packed(value)
    assert packed.sizes[:1] == [40_000] and len(packed.outline) < 1000
    back = _unpacked(packed)
    assert np.array_equal(back["a"], value["a"]) and np.array_equal(back["b"][0], np.ones((2, 3)))
    back["a"][0] = 5.0  # a result is the caller's own
    assert not os.path.exists(f"/dev/shm/{packed.block}")
    assert _unpacked(_packed({"text": "x"})) == {"text": "x"}


async def test_a_worker_that_dies_is_an_infrastructure_error():
    pool = ProcessorPool(1)
    with pytest.raises(InfrastructureError, match="died while preparing"):
        await pool.run(os._exit, 3)
    pool.close()


def test_a_negative_size_is_refused():
    with pytest.raises(ConfigError, match="--mm-processor-pool-size must be >= 0"):
        ProcessorPool(-1)
