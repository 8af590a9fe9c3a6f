# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Chat completions: what a chat becomes, and what its answer says, on a real tiny model."""

from __future__ import annotations

import json

import pytest

from relax.backends.engine_client import EngineRefused
from relax.backends.native.chat import parse_chat
from relax.backends.native.protocol import RequestError

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 2 plus 3?"}]
ROUTE = "/v1/chat/completions"


def parsed(**body):
    return parse_chat({"messages": MESSAGES, **body}, lambda messages, tools, options: [7, 8], model="m")


# ---------------------------------------------------------------------- requests


def test_sampling_is_translated_and_the_ids_are_those_of_the_template():
    seen = []

    def render(messages, tools, options):
        seen.append((messages, tools, options))
        return [7, 8]

    tools = [{"type": "function", "function": {"name": "add"}}]
    body = {
        "messages": MESSAGES,
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "seed": 3,
        "stop": ["x"],
        "rid": "g1.0.a0.t0",
    }
    call = parse_chat({**body, "tools": tools, "chat_template_kwargs": {"thinking": False}}, render, model="m")
    assert seen == [(MESSAGES, tools, {"thinking": False})]
    assert call.generate == {
        "input_ids": [7, 8],
        "sampling_params": {"max_new_tokens": 9, "temperature": 0.5, "sampling_seed": 3, "stop": ["x"]},
        "return_logprob": True,
        "rid": "g1.0.a0.t0",
    }


def test_tools_are_not_shown_where_none_may_be_called():
    parse_chat(
        {"messages": MESSAGES, "tools": [{}], "tool_choice": "none"},
        lambda messages, tools, options: [1] if tools is None else pytest.fail("tools were rendered"),
        model="m",
    )


def test_media_parts_become_places_in_the_text_and_data_in_order():
    content = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "text", "text": "and"},
        {"type": "input_audio", "input_audio": {"data": "BB", "format": "wav"}},
        {"type": "image", "image": "b.png"},
    ]
    seen = []
    call = parse_chat(
        {"messages": [{"role": "user", "content": content}]},
        lambda messages, *_: seen.append(messages) or [1],
        model="m",
    )
    assert seen[0][0]["content"] == [
        {"type": "image"},
        {"type": "text", "text": "and"},
        {"type": "audio"},
        {"type": "image"},
    ]
    assert call.generate["image_data"] == ["data:image/png;base64,AA", "b.png"]
    assert call.generate["audio_data"] == ["data:audio/wav;base64,BB"]
    assert "video_data" not in call.generate


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_token": 3}, "unknown key 'max_token'; did you mean 'max_tokens'"),
        ({"messages": []}, "messages must be a non-empty list"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\] must be an object with a role"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content must be a string or a list"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, r"content\[0\] has the type 'smell'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url must hold a URL"),
        ({"logprobs": "yes"}, "logprobs must be true or false"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs is not supported"),
        ({"tool_choice": "required"}, "tool_choice must be auto or none"),
        ({"response_format": {"type": "json_object"}}, "response_format must be text"),
        ({"stream": True, "return_token_ids": True}, "return_token_ids is not supported with streaming on /v1/chat"),
        ({"lora_path": "x"}, "lora_path='x' is not supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, words):
    with pytest.raises(RequestError, match=words):
        parsed(**body)


# ---------------------------------------------------------------------- answers


async def test_a_completion_is_the_generation_of_the_templates_ids(engine, text_folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(text_folder)
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(ids, add_special_tokens=False)["input_ids"]
    client = engine()
    sampling = {"temperature": 0.6, "max_new_tokens": 12, "sampling_seed": 5, "ignore_eos": True}
    expected = await client.generate({"input_ids": ids, "sampling_params": sampling, "return_logprob": True})
    flags = {"logprobs": True, "return_token_ids": True, "return_meta_info": True, "ignore_eos": True, "model": "mine"}
    chat = {"messages": MESSAGES, "temperature": 0.6, "max_tokens": 12, "seed": 5, **flags}
    answer = await client.post(ROUTE, chat)
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == ids
    assert choice["response_token_ids"] == expected["output_ids"]
    assert choice["message"] == {"role": "assistant", "content": expected["text"], "tool_calls": None}
    scores = [score for score, _, _ in expected["meta_info"]["output_token_logprobs"]]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == scores
    assert [entry[:2] for entry in choice["meta_info"]["output_token_logprobs"]] == [
        [score, token] for score, token in zip(scores, expected["output_ids"], strict=True)
    ]
    assert choice["finish_reason"] == "length"
    assert (answer["object"], answer["model"]) == ("chat.completion", "mine")
    assert answer["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 12, "total_tokens": len(ids) + 12}
    assert answer["metadata"]["weight_versions"] == [{"version": "default", "start": 0, "end": 12}]


async def test_token_exact_histories_and_several_choices(engine):
    client = engine()
    body = {
        "input_ids": [20, 21, 22],
        "n": 2,
        "max_tokens": 4,
        "seed": 1,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    answer = await client.post(ROUTE, body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[20, 21, 22]] * 2
    assert "meta_info" not in answer["choices"][0] and answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 8
    assert [spans[-1]["end"] for spans in answer["metadata"]["weight_versions"]] == [4, 4]


async def test_without_a_limit_an_answer_may_fill_the_context(engine):
    client = engine(context_length=40)
    answer = await client.post(ROUTE, {"input_ids": [20] * 30, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 10


async def test_a_stream_carries_the_same_text_and_ends(engine):
    client = engine()
    body = {"messages": MESSAGES, "max_tokens": 6, "seed": 5, "ignore_eos": True}
    whole = await client.post(ROUTE, body)
    text = await client.post(ROUTE, {**body, "stream": True, "stream_options": {"include_usage": True}})
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    first, last, usage = map(json.loads, events)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"]["content"] == whole["choices"][0]["message"]["content"]
    assert (first["choices"][0]["finish_reason"], last["choices"][0]["finish_reason"]) == (None, "length")
    assert usage["usage"] == whole["usage"]


async def test_a_refusal_names_the_field_and_the_template_its_message(engine):
    client = engine()
    with pytest.raises(EngineRefused, match="tool_choice must be auto or none") as caught:
        await client.post(ROUTE, {"messages": MESSAGES, "tool_choice": "required"})
    assert caught.value.status == 400
    with pytest.raises(EngineRefused, match="max_new_tokens"):
        await client.post(ROUTE, {"messages": MESSAGES, "max_tokens": 10**6})


async def test_media_of_a_chat_are_those_of_generate(engine, omni_folder):
    from benchmarks.parity import MAKERS

    client = engine(omni_folder)
    uri = MAKERS["image"](3)
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "What is it?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 6, "seed": 5, "ignore_eos": True}
    answer = await client.post(ROUTE, {**body, "return_token_ids": True, "return_meta_info": True})
    (choice,) = answer["choices"]
    params = {"max_new_tokens": 6, "sampling_seed": 5, "ignore_eos": True}
    expected = await client.generate(
        {
            "input_ids": choice["prompt_token_ids"],
            "image_data": [uri],
            "sampling_params": params,
            "return_logprob": True,
        }
    )
    assert choice["meta_info"]["output_token_logprobs"] == expected["meta_info"]["output_token_logprobs"]
    assert answer["usage"]["prompt_tokens"] > len(choice["prompt_token_ids"])
