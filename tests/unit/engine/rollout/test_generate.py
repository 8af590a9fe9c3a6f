# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The default generate function, its media payloads, and the sampling parameters."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import numpy as np
import pytest

from relax.data.media.decode import encode_png, encode_wav
from relax.data.media.items import MediaItem
from relax.engine.rollout.generate import generate
from relax.engine.rollout.media_payload import media_payload
from relax.engine.rollout.recorder import SampleRecorder, token_versions
from relax.engine.rollout.sampling import SamplingOptions
from relax.utils.errors import DataError, InfrastructureError
from relax.utils.http_utils import recording, register_local, unregister_local
from relax.utils.types import Sample
from tests.builders import tiny_tokenizer
from tests.fake_engine import FakeEngine, log_prob_of
from tests.unit.engine.rollout.limits import NO_LIMITS

URL = "http://10.0.0.4:3000"
ARGS = SimpleNamespace(sglang_router_ip="10.0.0.4", sglang_router_port=3000, hf_checkpoint="none", **NO_LIMITS)
PARAMS = SamplingOptions(max_response_len=6).params()


@pytest.fixture
def engine():
    engine = FakeEngine()
    register_local(URL, engine)
    yield engine
    unregister_local(URL)


@pytest.mark.parametrize(
    ("tokens", "status", "finish", "stop"),
    [
        (4, Sample.Status.COMPLETED, "stop", 1),
        (40, Sample.Status.TRUNCATED, "length", None),
    ],
)
async def test_status_and_stop_follow_the_engine(engine, tokens, status, finish, stop):
    """P10."""
    engine.num_tokens = lambda payload: tokens
    engine.version = 4
    sample = await generate(ARGS, Sample(tokens=[2, 3], group_index=1, index=0), PARAMS)
    assert (sample.status, sample.finish_reason, sample.matched_stop) == (status, finish, stop)
    length = min(tokens, 6)
    assert sample.response_length == length
    assert sample.tokens[:2] == sample.rollout_tokens == [2, 3]
    assert sample.rollout_log_probs == [log_prob_of(t) for t in sample.tokens[2:]]
    assert sample.weight_versions == [4] * length
    assert sample.loss_mask == [1] * length


@pytest.mark.parametrize(
    ("context", "prompt", "done", "asked"),
    [
        (100, 3, 0, 6),  # the budget of PARAMS
        (8, 3, 0, 5),  # what the context leaves
        (8, 3, 2, 3),  # of both, with two tokens there already: 6 - 2 and 8 - 5
        (100, 3, 2, 4),
        (3, 3, 0, 6),  # no room for any: the engine says so
    ],
)
async def test_a_response_takes_no_more_than_the_context_leaves(engine, tmp_path, context, prompt, done, asked):
    tiny_tokenizer().save_pretrained(tmp_path)
    args = SimpleNamespace(**(vars(ARGS) | {"rollout_max_context_len": context, "hf_checkpoint": str(tmp_path)}))
    began = {"response_length": done, "rollout_log_probs": [0.0] * done, "weight_versions": [0] * done}
    engine.num_tokens = lambda payload: 40
    await generate(args, Sample(tokens=[2, 3, 4, 5, 6][: prompt + done], rollout_tokens=[2, 3, 4], **began), PARAMS)
    assert [request["sampling_params"]["max_new_tokens"] for request in engine.requests] == [asked]


async def test_a_response_that_has_filled_the_context_ends_without_a_request(engine):
    args = SimpleNamespace(**(vars(ARGS) | {"rollout_max_context_len": 5}))
    began = {"response_length": 2, "rollout_log_probs": [0.0] * 2, "weight_versions": [0] * 2, "loss_mask": [1, 1]}
    sample = await generate(args, Sample(tokens=[2, 3, 4, 5, 6], rollout_tokens=[2, 3, 4], **began), PARAMS)
    assert (sample.status, sample.finish_reason) == (Sample.Status.TRUNCATED, "length")
    assert (sample.response_length, engine.requests) == (2, [])


@pytest.mark.parametrize("matched", [151645, 151643, "</answer>"])
async def test_each_kind_of_stop_is_kept(engine, matched):
    """P10: end token, second end token, stop string."""

    def edit(payload, answer):
        answer["meta_info"]["finish_reason"] = {"type": "stop", "matched": matched}
        return answer

    engine.edit = edit
    sample = await generate(ARGS, Sample(tokens=[2, 3]), PARAMS)
    assert (sample.finish_reason, sample.matched_stop) == ("stop", matched)


async def test_media_go_unexpanded_with_data_uris_and_train_expanded(engine):
    from PIL import Image

    png = encode_png(Image.new("RGB", (2, 3), (10, 20, 30)))
    sample = Sample(
        rollout_tokens=[2, 9, 3],  # one placeholder, as sent
        tokens=[2, 9, 9, 9, 9, 3],  # four placeholders, as trained
        multimodal_inputs={"image": [MediaItem.of("image", png)], "audio": []},
        group_index=1,
        index=0,
    )
    engine.expanded_by = 3
    recorder = SampleRecorder(seed=1, stream="sample", sample=sample)
    with recording(recorder):
        sample = await generate(ARGS, sample, PARAMS)
    assert engine.requests[0]["input_ids"] == [2, 9, 3]
    assert engine.requests[0]["image_data"] == ["data:image/png;base64," + base64.b64encode(png).decode()]
    assert "audio_data" not in engine.requests[0]
    assert sample.tokens[:6] == [2, 9, 9, 9, 9, 3]
    assert len(sample.tokens) == 6 + sample.response_length
    assert recorder.settle(sample) is False  # the answer is found behind the expanded prompt
    assert sample.weight_versions == [0] * 5


async def test_an_engine_that_expands_media_to_another_prompt_ends_the_run(engine):
    engine.expanded_by = 2  # one placeholder too few
    sample = Sample(rollout_tokens=[2, 9, 3], tokens=[2, 9, 9, 9, 9, 3], group_index=4, index=1)
    with pytest.raises(
        InfrastructureError, match=r"sample 4\.1: the engine's prompt has 5 tokens, the trainer's 6.*--image"
    ):
        await generate(ARGS, sample, PARAMS)


async def test_a_continued_response_counts_as_prompt(engine):
    sample = Sample(rollout_tokens=[2, 9], tokens=[2, 9, 9, 9, 40], response_length=1, response="40")
    engine.expanded_by = 1
    with pytest.raises(InfrastructureError, match="prompt has 4 tokens, the trainer's 5"):
        await generate(ARGS, sample, PARAMS)


async def test_an_engine_that_reports_no_prompt_length_is_believed(engine):
    def edit(payload, answer):
        del answer["meta_info"]["prompt_tokens"]
        return answer

    engine.edit = edit
    sample = await generate(ARGS, Sample(rollout_tokens=[2, 9], tokens=[2, 9, 9]), PARAMS)
    assert sample.response_length == 5


async def test_missing_log_probs_are_an_error_that_says_how_many(engine):
    def edit(payload, answer):
        answer["meta_info"]["output_token_logprobs"].pop()
        return answer

    engine.edit = edit
    with pytest.raises(InfrastructureError, match="5 ids but 4 log-probs"):
        await generate(ARGS, Sample(tokens=[2, 3]), PARAMS)


async def test_media_without_prepared_ids_is_refused(engine):
    with pytest.raises(DataError, match=r"sample 3\.1 has media but no prepared prompt ids"):
        await generate(ARGS, Sample(multimodal_inputs={"image": [b"x"]}, group_index=3, index=1), PARAMS)


async def test_text_of_a_continued_response_is_decoded_whole(engine, tmp_path):
    """T9: the interruption cuts a character of several bytes; the engine's own text holds only its broken half."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer.encode("\u00e9", add_special_tokens=False)
    assert len(ids) == 2

    def edit(payload, answer):
        assert payload["input_ids"] == [2, 3, ids[0]]
        assert payload["sampling_params"]["max_new_tokens"] == 5
        answer["output_ids"] = [ids[1]]
        answer["meta_info"]["output_token_logprobs"] = [[-2.0, ids[1], None]]
        answer["meta_info"]["weight_versions"] = [{"version": "1", "start": 0, "end": 1}]
        answer["text"] = tokenizer.decode([ids[1]])
        return answer

    engine.edit = edit
    sample = Sample(rollout_tokens=[2, 3], tokens=[2, 3, ids[0]], response_length=1, response="\ufffd")
    sample.loss_mask, sample.rollout_log_probs, sample.weight_versions = [1], [-1.0], [0]
    args = SimpleNamespace(**(vars(ARGS) | {"hf_checkpoint": str(tmp_path)}))
    sample = await generate(args, sample, PARAMS)
    assert sample.response == "\u00e9"
    assert (sample.tokens, sample.response_length) == ([2, 3, *ids], 2)
    assert (sample.loss_mask, sample.rollout_log_probs, sample.weight_versions) == ([1, 1], [-1.0, -2.0], [0, 1])


def test_prepared_items_and_raw_forms_become_data_uris(tmp_path):
    wav = encode_wav(np.zeros(16_000, np.float32), 16_000)
    (tmp_path / "sound.wav").write_bytes(wav)
    uri = "data:audio/wav;base64," + base64.b64encode(wav).decode()
    item = MediaItem.of("audio", wav)
    inputs = {"audio": [item, wav, str(tmp_path / "sound.wav"), {"bytes": wav, "path": None}], "image": []}
    payload = media_payload(inputs, where="sample 1.0")
    assert payload == {"audio_data": [uri] * 4}
    assert payload["audio_data"][0] is item.data_uri()  # encoded once for all samples of a group
    assert media_payload(None, where="sample 1.0") == {}
    with pytest.raises(DataError, match=r"sample 1\.0"):
        media_payload({"audio": [str(tmp_path / "none.wav")]}, where="sample 1.0")


def test_sampling_params_keep_the_stop_in_the_ids():
    params = SamplingOptions(max_response_len=8, top_k=5, stop=("</a>",), stop_token_ids=(7,)).params()
    assert params == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 5,
        "max_new_tokens": 8,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
        "stop": ["</a>"],
        "stop_token_ids": [7],
    }


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("max_response_len", 0, "--rollout-max-response-len"),
        ("temperature", -1.0, "--rollout-temperature"),
        ("top_p", 0.0, "--rollout-top-p"),
        ("top_k", 0, "--rollout-top-k"),
    ],
)
def test_wrong_sampling_options_name_their_flag(field, value, flag):
    with pytest.raises(ValueError, match=flag):
        SamplingOptions(**{"max_response_len": 8, field: value})


def test_version_spans_must_cover_every_token():
    assert token_versions({"weight_version": "default"}, 2) == (0, 0)
    spans = [{"version": "2", "start": 0, "end": 1}, {"version": 3, "start": 1, "end": 3}]
    assert token_versions({"weight_versions": spans}, 3) == (2, 3, 3)
    with pytest.raises(InfrastructureError, match="do not cover 4 tokens"):
        token_versions({"weight_versions": spans}, 4)
    with pytest.raises(InfrastructureError, match="gap or overlap"):
        token_versions({"weight_versions": spans[1:]}, 2)
    with pytest.raises(InfrastructureError, match="'retract', which is not a number"):
        token_versions({"weight_version": "retract"}, 1)
