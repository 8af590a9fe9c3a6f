# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Images, audio and video in every position: expansion, log-probs against HF, bits whatever the company."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import numpy as np
import pytest

from benchmarks.parity import LAYOUTS, load_hf_omni, processor, tokenizer
from benchmarks.parity import prompt_ids as prompt_of
from relax.backends.base import EngineConfig
from relax.backends.conformance.reference import hf_log_probs
from relax.backends.conformance.samples import MAKERS, png, wav
from relax.backends.engine_client import EngineRefused
from relax.backends.native.build import EngineSettings
from relax.backends.native.server import parser
from relax.backends.native.spec import NativeEngine
from relax.data.media.items import load_media
from relax.data.media.processing import MediaOptions, MediaProcessor
from relax.utils.errors import ConfigError


async def generate(client, ids, media, n=12, seed=5, temperature=0.6):
    """`media` is [(kind, uri)] in order of appearance."""
    body = {f"{kind}_data": [uri for k, uri in media if k == kind] or None for kind in MAKERS}
    params = {"temperature": temperature, "max_new_tokens": n, "sampling_seed": seed, "ignore_eos": True}
    return await client.generate({"input_ids": ids, "sampling_params": params, "return_logprob": True, **body})


def scores(answer):
    return np.asarray([score for score, _, _ in answer["meta_info"]["output_token_logprobs"]])


hf_model = functools.cache(load_hf_omni)


def expected_scores(client, folder, ids, media, answer):
    """An ordinary HF forward over the expanded prompt with the processor's features."""
    features = [processor().extract(load_media(k, uri, folder=Path(), where="test")) for k, uri in media]
    suppressed = client.app.state.service.options.suppressed_ids
    expanded = processor().expand(ids, features)
    return hf_log_probs(hf_model(folder), expanded, features, answer["output_ids"], 0.6, suppressed)


@pytest.mark.parametrize("kind", sorted(MAKERS))
async def test_log_probs_are_hfs_with_the_medium_in_every_position(engine, omni_folder, kind):
    client = engine(omni_folder)
    for place, layout in enumerate(LAYOUTS):
        # HF pads audio chunks to the longest of the call, the shared forward always to a full second: clips are longer
        media = [(kind, MAKERS[kind](10 * place + i)) for i in range(layout.split().count("M"))]
        ids = prompt_of(layout, [kind] * len(media))
        answer = await generate(client, ids, media)
        expected = expected_scores(client, omni_folder, ids, media, answer)
        assert np.abs(scores(answer) - expected).max() < 1e-4, layout
        assert answer["meta_info"]["prompt_tokens"] > len(ids)


async def test_limits_of_media_reach_the_engine_through_its_command(engine, omni_folder):
    """The expanded prompt is the rollout role's, and the log-probs are those of its features."""
    options = MediaOptions(image_min_tokens=2, image_max_tokens=4, video_max_tokens=4, audio_sample_rate=16_000)
    config = EngineConfig(omni_folder, media_options=options)
    argv = NativeEngine().command(config, host="127.0.0.1", port=0).argv
    settings = EngineSettings.from_arguments(parser().parse_args(argv[3:]))
    assert settings.media_options == EngineSettings.from_config(config).media_options == options
    limited = MediaProcessor(processor().processor, options)
    client = engine(omni_folder, media_options=settings.media_options)
    usual = engine(omni_folder)
    for kind, uri in (("image", png(1, 96, 96)), ("video", MAKERS["video"](1))):
        ids = prompt_of("text M text", [kind])
        features = [limited.extract(load_media(kind, uri, folder=Path(), where="test"))]
        expanded = limited.expand(ids, features)
        answer = await generate(client, ids, [(kind, uri)])
        assert answer["meta_info"]["prompt_tokens"] == len(expanded)
        suppressed = client.app.state.service.options.suppressed_ids
        expected = hf_log_probs(hf_model(omni_folder), expanded, features, answer["output_ids"], 0.6, suppressed)
        assert np.abs(scores(answer) - expected).max() < 1e-4
    ids = prompt_of("text M text", ["image"])
    without = await generate(usual, ids, [("image", png(1, 96, 96))])
    assert without["meta_info"]["prompt_tokens"] == len(ids) - 1 + (96 // 16) ** 2  # a token is 2 x 2 patches of 8


def test_media_options_that_are_no_object_of_known_limits_are_refused():
    with pytest.raises(ConfigError, match="is not JSON"):
        MediaOptions.from_json("{", flag="--media-options")
    with pytest.raises(ConfigError, match=r"--media-options .* keys of image_min_tokens, "):
        MediaOptions.from_json('{"image_size": 3}', flag="--media-options")


async def test_the_medium_matters(engine, omni_folder):
    client = engine(omni_folder)
    for kind, make in MAKERS.items():
        ids = prompt_of("text M text", [kind])
        first, second = [await generate(client, ids, [(kind, make(seed))], temperature=1.0) for seed in (1, 2)]
        assert abs(scores(first)[0] - scores(second)[0]) > 1e-6 or first["output_ids"] != second["output_ids"], kind


async def test_all_kinds_in_one_prompt_agree_with_hf(engine, omni_folder):
    client = engine(omni_folder)
    kinds = ["audio", "image", "video", "image"]
    media = [(kind, MAKERS[kind](i)) for i, kind in enumerate(kinds)]
    ids = prompt_of("M text M M text M text", kinds)
    answer = await generate(client, ids, media)
    expected = expected_scores(client, omni_folder, ids, media, answer)
    assert np.abs(scores(answer) - expected).max() < 1e-4


async def test_P12_media_prompts_have_the_same_bits_alone_in_a_batch_and_after_a_retract(engine, omni_folder):
    client = engine(omni_folder)
    calls = []
    for i in range(12):
        kind = ["image", "audio", "video"][i % 3]
        uri = wav(i, 0.2 + 0.17 * i) if kind == "audio" else MAKERS[kind](i)
        calls.append((prompt_of(LAYOUTS[i % 4], [kind]), [(kind, uri)], 10 + 3 * i, i))
    alone = []
    for call in calls:
        alone.append(await generate(client, *call))
        await client.flush()
        client.app.state.service._runner._encoded.clear()
    tasks = [asyncio.create_task(generate(client, *call)) for call in calls]
    for _ in range(3):
        await asyncio.sleep(0.15)
        await client.pause("retract")
        await client.flush()
        await client.resume()
    together = await asyncio.gather(*tasks)
    for one, other in zip(alone, together, strict=True):
        assert one["meta_info"]["output_token_logprobs"] == other["meta_info"]["output_token_logprobs"]


async def test_a_group_with_media_is_prefilled_once(engine, omni_folder):
    client = engine(omni_folder)
    ids = prompt_of("text M text", ["image"])
    answers = await asyncio.gather(*(generate(client, ids, [("image", png(1))], seed=i) for i in range(4)))
    cached = sorted(a["meta_info"]["cached_tokens"] for a in answers)
    length = answers[0]["meta_info"]["prompt_tokens"]
    assert cached == [0, length, length, length]
    other = await generate(client, ids, [("image", png(2))])
    assert other["meta_info"]["cached_tokens"] == 0  # the same ids with another image are another prompt


async def test_equal_media_are_read_once_and_the_new_ones_of_a_prefill_share_an_encoder_call(engine, omni_folder):
    client = engine(omni_folder)
    service = client.app.state.service
    calls = []
    hook = service._runner.model.towers["visual"].register_forward_hook(lambda *_: calls.append(1))
    await client.pause("in_place")  # requests gather, so that one prefill admits them all
    ids = prompt_of("text M text", ["image"])
    uris = [MAKERS["image"](400 + i) for i in range(6)]
    tasks = [asyncio.create_task(generate(client, ids, [("image", uri)], seed=i)) for uri in uris for i in range(4)]
    while len(service.loop.scheduler.waiting) < len(tasks):
        await asyncio.sleep(0.01)
    prompts = {id(response.prompt) for response in service.loop.scheduler.waiting}
    await client.resume()
    answers = await asyncio.gather(*tasks)
    hook.remove()
    assert len(prompts) == len(uris)
    assert len(calls) == 1
    alone = await generate(client, ids, [("image", uris[3])], seed=2)
    assert scores(alone).tolist() == scores(answers[3 * 4 + 2]).tolist()


async def test_placeholders_are_never_sampled(engine, omni_folder):
    client = engine(omni_folder)
    suppressed = set(client.app.state.service.options.suppressed_ids)
    ids = tokenizer().convert_tokens_to_ids
    assert {ids("<|image_pad|>"), ids("<|video_pad|>"), ids("<|audio_pad|>")} <= suppressed
    answers = await asyncio.gather(*(generate(client, [40 + i], [], n=100, seed=i, temperature=3.0) for i in range(8)))
    assert not suppressed & {token for answer in answers for token in answer["output_ids"]}


async def test_M1_M3_wrong_media_are_refused_with_counts(engine, omni_folder):
    client = engine(omni_folder)
    image = ("image", png(1))
    two = prompt_of("M text M", ["image", "image"])
    expanded = []
    for token in prompt_of("M text", ["image"]):
        pads = 4 if token == tokenizer().convert_tokens_to_ids("<|image_pad|>") else 1
        expanded += [token] * pads
    wrong = [
        (two, [image], ["image_data has 1 items", "2 image"]),
        (prompt_of("text", []), [image], ["image_data has 1 items", "0 image"]),
        (prompt_of("M text", ["image"]), [], ["placeholder"]),
        (prompt_of("M text", ["image"]), [("audio", wav(1))], ["image_data has 0 items"]),
        (expanded, [image], ["4 image", "unexpanded"]),
        (prompt_of("M text", ["image"]), [("image", "data:image/png;base64,AAAA")], ["image"]),
        (prompt_of("M text", ["image"]), [("image", "/no/such/file.png")], ["/no/such/file.png"]),
    ]
    for ids, media, words in wrong:
        with pytest.raises(EngineRefused) as caught:
            await generate(client, ids, media)
        assert caught.value.status == 400
        for word in words:
            assert word in str(caught.value)
    await generate(client, prompt_of("M text", ["image"]), [image])  # the engine lives
