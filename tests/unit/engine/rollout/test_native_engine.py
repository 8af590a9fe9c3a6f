# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The rollout against the real embedded engine, in this process: ids, log-probs and versions pass the tap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from relax.backends.base import ModelSpec, Part
from relax.backends.engine_client import AsgiEngineClient
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.native.build import EngineSettings, build_app
from relax.data.columns import TrainSequence
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.engine.rollout.attempts import GenerationOptions
from relax.engine.rollout.generate_rollout import generate_rollout
from relax.engine.rollout.groups import AdmittedGroup, GroupGenerator
from relax.engine.rollout.hooks import load_hook
from relax.engine.rollout.sampling import SamplingOptions
from relax.schedule.clock import RealClock
from relax.utils.http_utils import HttpError, post, register_local, unregister_local
from relax.utils.types import Sample
from tests.builders import build_tiny_model_folder, tiny_tokenizer
from tests.unit.engine.rollout.limits import NO_LIMITS

URL = "http://10.0.0.5:3000"


class LengthScorer:
    async def score(self, samples: list[Sample]) -> None:
        for sample in samples:
            sample.reward = float(sample.response_length)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def client(folder):
    client = AsgiEngineClient(build_app(EngineSettings(folder, max_running_requests=16, max_total_tokens=4096)))
    register_local(URL, client)
    yield client
    unregister_local(URL)
    await client.close()


def make_args(folder) -> SimpleNamespace:
    return SimpleNamespace(
        sglang_router_ip="10.0.0.5",
        sglang_router_port=3000,
        hf_checkpoint=str(folder),
        rollout_max_response_len=12,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_stop=(),
        rollout_stop_token_ids=(),
        rollout_skip_special_tokens=False,
        rollout_seed=42,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        sglang_server_concurrency=None,
        engine_max_running_requests=16,
        **NO_LIMITS,
        partial_rollout=False,
        partial_rollout_max_aborted_count=None,
        mask_offpolicy_in_partial_rollout=False,
        generate_timeout_s=60.0,
        rollout_failure_policy="fail",
        custom_generate_function_path=None,
        rollout_batch_size=2,
        over_sampling_batch_size=None,
    )


async def generated(args, client, order: list[int], limit: int) -> dict[int, list[Sample]]:
    generator = GroupGenerator(
        args=args,
        hook=load_hook(),
        sampling_params=SamplingOptions(max_response_len=12).params(),
        options=GenerationOptions(seed=42, max_response_len=12, max_running_samples=limit, on_failure="fail"),
        clock=RealClock(),
        scorer=LengthScorer(),
        engines=client,
    )
    prompt = tiny_tokenizer().encode("What is 3 plus 4?", add_special_tokens=False)
    generator.admit([AdmittedGroup(n, Sample(rollout_tokens=prompt), 4) for n in order])
    try:
        groups = [await generator.next_finished() for _ in order]
    finally:
        await generator.stop()
    assert all(group.accepted for group in groups)
    return {group.group: group.samples for group in groups}


async def test_tokens_and_log_probs_do_not_depend_on_order_or_batch(client, folder):
    args = make_args(folder)
    first = await generated(args, client, [5, 6, 7], 16)
    again = await generated(args, client, [7, 5, 6], 3)
    for group, samples in first.items():
        assert [s.tokens for s in again[group]] == [s.tokens for s in samples]
        assert [s.rollout_log_probs for s in again[group]] == [s.rollout_log_probs for s in samples]  # to the bit
        assert [s.weight_versions for s in samples] == [[0] * s.response_length for s in samples]
    assert len({tuple(s.tokens) for samples in first.values() for s in samples}) == 12


async def test_the_default_rollout_function_collects_a_batch(client, folder):
    class Source:
        drawn = 0

        def get_samples(self, num_groups: int) -> list[list[Sample]]:
            first, self.drawn = self.drawn, self.drawn + num_groups
            ids = tiny_tokenizer().encode("Which digit is shown?", add_special_tokens=False)
            return [
                [Sample(group_index=g, index=i, rollout_tokens=list(ids)) for i in range(2)]
                for g in range(first, self.drawn)
            ]

    def drop_first(args, samples):
        return SimpleNamespace(keep=samples[0].group_index != 0, reason="first")

    source = Source()
    output = await generate_rollout(
        make_args(folder), 0, source, scorer=LengthScorer(), dynamic_filter=drop_first, engines=client
    )
    assert [[(s.group_index, s.index) for s in group] for group in output.samples] == [
        [(1, 0), (1, 1)],
        [(2, 0), (2, 1)],
    ]
    assert source.drawn == 3  # two, and one more for the dropped one
    assert output.metrics["rollout/dropped_groups/first"] == 1.0


async def test_what_the_engine_refuses_keeps_its_status(client, folder):
    with pytest.raises(HttpError, match="answered 400") as caught:
        await post(f"{URL}/generate", {"input_ids": [], "sampling_params": {"max_new_tokens": 4}})
    assert caught.value.status == 400


async def test_a_continued_response_has_the_trainers_log_probs_under_each_of_its_versions(client, folder, tmp_path):
    """Two weight updates cut it; each of its tokens is scored by the trainer under the version that sampled it."""
    folders = [folder, *(build_tiny_model_folder(tmp_path / str(seed), seed=seed) for seed in (1, 2))]
    args = make_args(folder)
    generator = GroupGenerator(
        args=args,
        hook=load_hook(),
        sampling_params=SamplingOptions(max_response_len=1200, temperature=0.9).params() | {"ignore_eos": True},
        options=GenerationOptions(seed=42, max_response_len=1200, partial_rollout=True, on_failure="fail"),
        clock=RealClock(),
        scorer=LengthScorer(),
        engines=client,
    )
    prompt = tiny_tokenizer().encode("What is 3 plus 4?", add_special_tokens=False)
    await install(client, folders[0], 0, tmp_path)
    generator.admit([AdmittedGroup(3, Sample(rollout_tokens=prompt), 3)])
    try:
        for version in (1, 2):
            await asyncio.sleep(0.3)  # a response of 1,200 tokens takes several times as long on any machine
            generator.pause()
            assert await generator.interrupt() == 3
            await install(client, folders[version], version, tmp_path)
            generator.resume()
        samples = (await generator.next_finished()).samples
    finally:
        await generator.stop()
    assert {version for s in samples for version in s.weight_versions} == {0, 1, 2}
    assert [(s.response_length, s.abort_count) for s in samples] == [(1200, 2)] * 3
    scores = [score(model, samples, temperature=0.9) for model in folders]
    for place, sample in enumerate(samples):
        versions = np.asarray(sample.weight_versions)
        own = np.choose(versions, [found[place] for found in scores])
        engine = np.asarray(sample.rollout_log_probs, np.float32)
        assert (own == engine).all()  # to the bit: prefix and response alike were computed under the new weights
        assert (np.choose(np.minimum(versions + 1, 2), [f[place] for f in scores]) != engine)[versions < 2].any()


async def install(client, folder, version: int, scratch) -> None:
    backend = FsdpBackend()
    backend.open(ModelSpec(folder), None)
    manifest = SharedMemoryPublisher(scratch / "versions").publish(version, backend.weights())
    backend.close()
    await client.pause("retract")
    await client.weights_begin()
    await client.weights_from_disk(Path(str(manifest.folder)), version)
    await client.weights_end(version)
    await client.resume()


def score(folder, samples: list[Sample], *, temperature: float) -> list[np.ndarray]:
    """float32 log-probs of the whole responses under one folder's weights."""
    backend = FsdpBackend()
    backend.open(ModelSpec(folder, temperature=temperature), None)
    rows = [
        TrainSequence(
            3, s.index, np.asarray(s.tokens, np.int32), s.prompt_length, np.ones(s.response_length, np.uint8)
        )
        for s in samples
    ]
    found = backend.score(Part((tuple(rows),)), frozenset({"log_probs"}))
    backend.close()
    return [found[row.uid]["log_probs"] for row in rows]
