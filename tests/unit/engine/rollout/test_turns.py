# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Responses of several turns with media in later turns: what the engine is sent and what is trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from relax.data.chat import PromptBuilder
from relax.data.datasets import RawRow
from relax.engine.rollout.hooks import ActiveTime, call_generate, make_hook
from relax.engine.rollout.prompts import prompt_sample
from relax.engine.rollout.recorder import SampleRecorder
from relax.engine.rollout.state import GenerateState
from relax.engine.rollout.turns import Turns
from relax.utils.errors import InfrastructureError
from relax.utils.http_utils import register_local, unregister_local
from relax.utils.types import Sample
from tests.builders import tiny_omni_processor
from tests.fake_engine import FakeEngine

URL = "http://10.0.0.7:3000"
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Here: "}, {"type": "image"}]}
IM_END = 2  # "<|im_end|>", the third special token


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("omni")
    tiny_omni_processor().save_pretrained(folder)
    return folder


@pytest.fixture
def engine(folder: Path):
    engine = FakeEngine(eos_id=IM_END)
    pad = tiny_omni_processor().tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def expanded(payload: Any, answer: Any) -> Any:
        """The prompt's picture takes 4 tokens, the observation's 8 (see below)."""
        extra = sum({0: 3, 1: 7}[place] for place in range(payload["input_ids"].count(pad)))
        answer["meta_info"]["prompt_tokens"] = len(payload["input_ids"]) + extra
        return answer

    engine.edit = expanded
    register_local(URL, engine)
    yield engine
    unregister_local(URL)


def make_args(folder: Path, **changed: Any) -> SimpleNamespace:
    limits = dict.fromkeys(("image_min_tokens", "image_max_tokens", "video_min_tokens", "video_max_tokens"))
    values = dict(
        hf_checkpoint=str(folder),
        sglang_router_ip="10.0.0.7",
        sglang_router_port=3000,
        rollout_max_context_len=None,
        rollout_backend="native",
        engine_max_total_tokens=65536,
        apply_chat_template_kwargs={},
        chat_template=None,
        audio_sample_rate=None,
        video_fps=2.0,
        video_min_frames=4,
        video_max_frames=768,
        **limits,
    )
    return SimpleNamespace(**(values | changed))


def prompt() -> Sample:
    """32 x 32 pixels are 2 x 2 patches of 16 after merging: 4 tokens."""
    processor = tiny_omni_processor()
    keys: dict[str, Any] = {"input_key": "prompt", "multimodal_keys": {"image": "image"}}
    builder = PromptBuilder(processor.tokenizer, processor, apply_chat_template=True, **keys)
    row = {"prompt": "<image> What is 3 plus 4?", "image": [Image.new("RGB", (32, 32), (200, 0, 0))]}
    return prompt_sample(builder.build(RawRow(row, "here:1", Path())), group=7, row=0)


async def call(function: Any, args: Any, sample: Sample, **sampling: Any) -> Sample:
    sample.index = sample.index or 0
    (out,) = await call_generate(
        make_hook(function, "user.generate"),
        args=args,
        sample=sample,
        sampling_params={"temperature": 1.0, "max_new_tokens": 100, **sampling},
        evaluation=False,
        recorder=SampleRecorder(seed=42, stream="sample", sample=sample),
        permits=asyncio.Semaphore(1),
        timeout_s=60.0,
        active=ActiveTime(),
    )
    return out


async def two_turns(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    turns = Turns(args, sample)
    await turns.ask(sampling_params)
    if await turns.observe(MESSAGE, [Image.new("RGB", (64, 32), (0, 200, 0))]):  # 4 x 2 patches: 8 tokens
        await turns.ask(sampling_params)
    return sample


async def test_an_image_of_a_later_turn_goes_the_way_of_the_prompts(engine: FakeEngine, folder: Path) -> None:
    tokenizer = tiny_omni_processor().tokenizer
    first, out = prompt(), prompt()
    out = await call(two_turns, make_args(folder), out)

    words = "\n<|im_start|>user\nHere: <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    unexpanded = tokenizer.encode(words, add_special_tokens=False)
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    where = unexpanded.index(pad)
    observation = [*unexpanded[:where], *[pad] * 8, *unexpanded[where + 1 :]]
    begin, length = len(first.tokens), len(observation)
    assert out.tokens[:begin] == first.tokens
    assert out.tokens[begin + 4] == IM_END  # the first answer ends itself, so the observation does not end it again
    assert out.tokens[begin + 5 : begin + 5 + length] == observation
    assert out.response_length == 10 + length
    assert out.loss_mask == [1] * 5 + [0] * length + [1] * 5
    assert out.rollout_log_probs[5 : 5 + length] == [0.0] * length
    assert out.weight_versions == [0] * 5 + [-1] * length + [0] * 5

    one, two = engine.requests
    assert one["input_ids"] == first.rollout_tokens
    assert two["input_ids"] == first.rollout_tokens + out.tokens[begin : begin + 5] + unexpanded
    assert [len(request["image_data"]) for request in engine.requests] == [1, 2]
    assert two["image_data"][0] == one["image_data"][0]
    assert [item.num_tokens for item in out.multimodal_train_inputs] == [4, 8]
    assert [item.sha256 for item in out.multimodal_inputs["image"]] == [
        item.sha256 for item in out.multimodal_train_inputs
    ]


async def test_a_short_answer_is_not_taken_for_the_same_words_of_an_observation(
    engine: FakeEngine, folder: Path
) -> None:
    """Each answer is the end of a message alone, which the observation between them holds as well."""
    engine.num_tokens = lambda payload: 1
    out = await call(two_turns, make_args(folder), prompt())
    response = out.tokens[out.prompt_length :]
    assert response[0] == response[-1] == IM_END
    assert IM_END in response[1:-1]
    assert out.weight_versions == [0] + [-1] * (len(response) - 2) + [0]


async def test_the_prompt_that_the_group_shares_is_left_as_it_is(engine: FakeEngine, folder: Path) -> None:
    from relax.engine.rollout.attempts import fresh_copy

    shared = prompt()
    inputs, features = shared.multimodal_inputs, shared.multimodal_train_inputs
    out = await call(two_turns, make_args(folder), fresh_copy(shared, 0))
    assert len(out.multimodal_train_inputs) == 2
    assert (len(inputs["image"]), len(features)) == (1, 1)


@pytest.mark.parametrize("flag", ["rollout_max_context_len", "engine_max_total_tokens"])
async def test_an_observation_that_the_context_has_no_room_for_ends_the_sample(
    engine: FakeEngine, folder: Path, flag: str
) -> None:
    """The prompt and five tokens fit exactly; nothing of the observation is appended."""
    sample = prompt()
    limit = len(sample.tokens) + 5 + 8
    out = await call(two_turns, make_args(folder, **{flag: limit}), sample)
    assert (out.status, out.finish_reason) == (Sample.Status.TRUNCATED, "length")
    assert out.loss_mask == [1] * 5
    assert len(engine.requests) == len(out.multimodal_train_inputs) == 1


async def test_an_answer_of_any_turn_takes_no_more_than_the_context_leaves(engine: FakeEngine, folder: Path) -> None:
    """Of 100 tokens asked for, what lies between the sample's tokens and the context."""
    out = await call(two_turns, make_args(folder), prompt())
    start, second = len(prompt().tokens), len(out.tokens) - 5  # each answer has five tokens
    limit = second + 7
    engine.requests.clear()
    await call(two_turns, make_args(folder, rollout_max_context_len=limit), prompt())
    asked = [request["sampling_params"]["max_new_tokens"] for request in engine.requests]
    assert asked == [min(100, limit - start), 7]


async def test_an_engine_that_sees_the_later_image_at_another_size_ends_the_run(
    engine: FakeEngine, folder: Path
) -> None:
    usual = engine.edit

    def other(payload: Any, answer: Any) -> Any:
        answer = usual(payload, answer)
        answer["meta_info"]["prompt_tokens"] += len(payload["image_data"]) - 1
        return answer

    engine.edit = other
    with pytest.raises(InfrastructureError, match=r"sample 7\.0: the engine's prompt has \d+ tokens, the trainer's"):
        await call(two_turns, make_args(folder), prompt())


def test_the_context_is_that_of_the_model_where_no_flag_is_smaller(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl", "text_config": {"max_position_embeddings": 512}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    limit_of = lambda **changed: GenerateState(make_args(tmp_path, **changed)).context_limit  # noqa: E731
    assert limit_of() == 512
    assert limit_of(rollout_max_context_len=256) == 256
    assert limit_of(engine_max_total_tokens=128) == 128
    assert limit_of(engine_max_total_tokens=128, rollout_backend="sglang") == 512
