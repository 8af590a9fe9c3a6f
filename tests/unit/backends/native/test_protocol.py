# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""SGLang's request format: what is honoured, what is refused, and with which words."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.backends.native.protocol import RequestError, parse_generate, parse_sampling, version_spans
from relax.utils.rng import stream_key

SCORED = {"return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}


def one(**body):
    (request,) = parse_generate({"input_ids": [1, 2], **body}).requests
    return request


def test_S8_sampling_parameters_arrive_unchanged():
    params = one(
        sampling_params={
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": 20,
            "max_new_tokens": 7,
            "min_new_tokens": 2,
            "stop": ["a", "bc"],
            "stop_token_ids": [5, 6],
            "ignore_eos": True,
            "sampling_seed": 12,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
        }
    ).params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 20)
    assert (params.max_new_tokens, params.min_new_tokens, params.sampling_seed) == (7, 2, 12)
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("a", "bc"), (5, 6), True)
    assert (params.skip_special_tokens, params.spaces_between_special_tokens, params.no_stop_trim) == (
        False,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"sampling_params": {"max_new_token": 3}}, ["max_new_token", "max_new_tokens"]),
        ({"sampling_params": {"temprature": 1}}, ["temprature", "temperature"]),
        ({"sampling_params": {"temperature": -0.1}}, ["temperature", "-0.1"]),
        ({"sampling_params": {"temperature": "hot"}}, ["temperature", "hot"]),
        ({"sampling_params": {"temperature": float("nan")}}, ["temperature"]),
        ({"sampling_params": {"top_p": 0}}, ["top_p"]),
        ({"sampling_params": {"top_k": -2}}, ["top_k"]),
        ({"sampling_params": {"max_new_tokens": 3, "min_new_tokens": 4}}, ["min_new_tokens", "3"]),
        ({"sampling_params": {"max_new_tokens": True}}, ["max_new_tokens"]),
        ({"sampling_params": {"n": 0}}, ["sampling_params.n"]),
        ({"sampling_params": {"sampling_seed": -1}}, ["sampling_seed"]),
        ({"sampling_params": {"frequency_penalty": 0.5}}, ["frequency_penalty"]),
        ({"sampling_params": {"regex": "a+"}}, ["regex"]),
        ({"sampling_params": {"stop": 3}}, ["stop"]),
        ({"input_ids": []}, ["input_ids"]),
        ({"input_ids": [1, -1]}, ["input_ids[1]", "-1"]),
        ({"input_ids": [1, "x"]}, ["input_ids[1]"]),
        ({"text": "both"}, ["text", "input_ids"]),
        ({"retrun_logprob": True}, ["retrun_logprob", "return_logprob"]),
        ({"return_logprob": "yes"}, ["return_logprob"]),
        ({"top_logprobs_num": 3}, ["top_logprobs_num", "return_logprob=true"]),
        ({"top_logprobs_num": 3, **SCORED, "sampling_params": {}}, ["top_logprobs_num", "max_new_tokens", "128"]),
        ({"top_logprobs_num": -1, **SCORED}, ["top_logprobs_num", "-1"]),
        ({"top_logprobs_num": True, **SCORED}, ["top_logprobs_num", "True"]),
        ({"token_ids_logprob": [3]}, ["token_ids_logprob", "logprob_start_len"]),
        ({"token_ids_logprob": 3, **SCORED}, ["token_ids_logprob", "list"]),
        ({"token_ids_logprob": [-3], **SCORED}, ["token_ids_logprob[0]", "-3"]),
        ({"token_ids_logprob": [[3], [4, 5]], **SCORED}, ["token_ids_logprob", "one length"]),
        ({"token_ids_logprob": [[3], 4], **SCORED}, ["token_ids_logprob[1]"]),
        ({"stream": True}, ["stream"]),
        ({"lora_path": "x"}, ["lora_path"]),
        ({"logprob_start_len": -2}, ["logprob_start_len"]),
        ({"image_data": [3]}, ["image_data"]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, words):
    with pytest.raises(RequestError) as caught:
        one(**body)
    assert caught.value.status == 400
    for word in words:
        assert word in str(caught.value)


def test_neutral_values_that_a_router_adds_are_accepted():
    request = one(
        stream=False,
        model="unknown",
        log_metrics=True,
        lora_path=None,
        sampling_params={"repetition_penalty": 1.0, "frequency_penalty": 0.0, "min_p": 0.0, "regex": None, "top_k": 0},
    )
    assert request.params.top_k == -1


def test_n_gives_a_list_of_requests_with_seeds_that_follow_from_the_first():
    call = parse_generate({"input_ids": [1], "rid": "g3.0.a0.t0", "sampling_params": {"n": 3, "sampling_seed": 9}})
    assert call.as_list
    assert [r.rid for r in call.requests] == ["g3.0.a0.t0.p0", "g3.0.a0.t0.p1", "g3.0.a0.t0.p2"]
    assert {r.parent_rid for r in call.requests} == {"g3.0.a0.t0"}
    assert [r.seed for r in call.requests] == [9, stream_key(9, "sample", 1), stream_key(9, "sample", 2)]


def test_requests_without_a_seed_get_different_fresh_ones():
    seeds = {one().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_a_batched_call_gives_each_prompt_its_share():
    call = parse_generate(
        {
            "input_ids": [[1, 2], [3]],
            "rid": ["a", "b"],
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
            "image_data": [None, "x.png"],
        }
    )
    assert call.as_list
    first, second = call.requests
    assert (first.rid, first.input_ids, first.params.max_new_tokens, first.image_data) == ("a", (1, 2), 1, ())
    assert (second.rid, second.input_ids, second.params.max_new_tokens, second.image_data) == (
        "b",
        (3,),
        2,
        ("x.png",),
    )
    with pytest.raises(RequestError, match="rid has 1 entries for 2 prompts"):
        parse_generate({"text": ["a", "b"], "rid": ["x"]})


def test_media_may_be_one_value_a_list_or_an_object_with_url():
    assert one(image_data="a.png").image_data == ("a.png",)
    assert one(audio_data=["a.wav", {"url": "b.wav"}]).audio_data == ("a.wav", "b.wav")


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(0, 8))
def test_version_spans_cover_every_token_once_in_order(starts, length):
    starts = sorted(min(s, length) for s in starts)
    if not starts:
        return
    starts[0] = 0
    spans = version_spans([(str(i // 2), s) for i, s in enumerate(starts)], length)
    covered = [t for span in spans for t in range(span["start"], span["end"])]
    assert covered == list(range(length))
    versions = [span["version"] for span in spans]
    assert all(a != b for a, b in itertools.pairwise(versions))


def test_defaults_are_sglangs():
    params = parse_sampling({})
    assert (params.temperature, params.top_p, params.top_k, params.max_new_tokens) == (1.0, 1.0, -1, 128)


def test_ids_to_score_are_for_every_prompt_of_a_call_or_for_each_its_own():
    def asked(ids, top=None):
        call = {"input_ids": [[1, 2], [3]], "token_ids_logprob": ids, "top_logprobs_num": top, **SCORED}
        return [(r.token_ids_logprob, r.top_logprobs_num) for r in parse_generate(call).requests]

    assert asked([8, 9]) == [((8, 9), 0)] * 2
    assert asked([[8], [9, 7]], [1, 2]) == [((8,), 1), ((9, 7), 2)]
    assert asked([[[8], [5]], [9]], 3) == [(((8,), (5,)), 3), ((9,), 3)]
    assert one(token_ids_logprob=[[8], [9]], **SCORED).token_ids_logprob == ((8,), (9,))
