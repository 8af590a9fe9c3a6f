# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The oracle is the model's own processor, asked for the whole prompt at once."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from relax.data.chat import PromptBuilder
from relax.data.columns import media_columns, media_from_columns
from relax.data.datasets import RawRow
from relax.data.media import decode
from relax.data.media.items import MediaItem, load_media
from relax.data.media.processing import MediaOptions, MediaProcessor
from relax.utils.errors import ConfigError, DataError
from relax.utils.types import MediaFeatures
from tests.builders import tiny_omni_processor, tiny_tokenizer, tiny_vl_processor

KINDS = ("omni", "qwen3_vl", "qwen2_5_vl")


@pytest.fixture(scope="module")
def processors() -> dict[str, MediaProcessor]:
    return {
        "omni": MediaProcessor(tiny_omni_processor()),
        "qwen3_vl": MediaProcessor(tiny_vl_processor("qwen3_vl")),
        "qwen2_5_vl": MediaProcessor(tiny_vl_processor("qwen2_5_vl")),
    }


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 255, shape, dtype=np.uint8)


def load(kind: str, value) -> MediaItem:
    return load_media(kind, value, folder=Path("/nowhere"), where="data.jsonl:7")


def image(height: int = 40, width: int = 48, seed: int = 0) -> MediaItem:
    return load("image", noise(height, width, 3, seed=seed))


def sound(samples: int, seed: int = 0) -> MediaItem:
    return load("audio", np.random.RandomState(seed).randn(samples).astype(np.float32) * 0.1)


def video(frames: int, fps: float = 8.0, seed: int = 0) -> MediaItem:
    return load("video", {"array": noise(frames, 40, 48, 3, seed=seed), "fps": fps})


def whole_prompt(processor, text: str, items: list[MediaItem]):
    """What the HF processor makes of a whole prompt, given frames that are sampled already."""
    from transformers.video_utils import VideoMetadata

    call: dict = {"text": [text], "return_tensors": "pt"}
    of = lambda kind: [item for item in items if item.kind == kind]  # noqa: E731
    if of("image"):
        call["images"] = [decode.decode_image(item.data, where="") for item in of("image")]
    if of("audio"):
        call["audio"] = [decode.decode_audio(item.data, where="") for item in of("audio")]
    if of("video"):
        clips = [decode.decode_video(item.data, where="") for item in of("video")]
        call["videos"] = [clip.frames for clip in clips]
        call["videos_kwargs"] = {
            "do_sample_frames": False,
            "size": dict(processor.video_processor.size),
            "video_metadata": [
                VideoMetadata(total_num_frames=clip.total, fps=clip.source_fps, frames_indices=list(clip.indices))
                for clip in clips
            ],
        }
    return processor(**call)


@pytest.mark.parametrize("kind", KINDS)
def test_expansion_and_features_equal_the_processors_own_for_a_whole_prompt(processors, kind):
    media = processors[kind]
    items = [image(), video(8), image(100, 60, seed=1), video(30, seed=2)]
    if kind == "omni":
        items.append(sound(16000))
    content = [part for item in items for part in ({"type": item.kind}, {"type": "text", "text": " and "})]
    tokenizer = media.processor.tokenizer
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    features = [media.extract(item) for item in items]

    expected = whole_prompt(media.processor, text, items)
    assert media.expand(ids, features) == expected["input_ids"][0].tolist()
    assert sum(media.spans(ids, features)) == len(expected["input_ids"][0])
    for name, first in (("pixel_values", "image"), ("pixel_values_videos", "video")):
        own = np.concatenate([f.tensors[name] for f in features if f.kind == first])
        assert np.array_equal(own, expected[name].numpy())
        grids = np.stack([f.tensors[f"{first}_grid_thw"] for f in features if f.kind == first])
        assert np.array_equal(grids, expected[f"{first}_grid_thw"].numpy())
    if kind == "qwen2_5_vl":
        seconds = [float(f.tensors["second_per_grid_ts"]) for f in features if f.kind == "video"]
        assert seconds == pytest.approx(np.asarray(expected["second_per_grid_ts"]).tolist())
    if kind == "omni":
        assert np.array_equal(features[-1].tensors["input_features"], expected["input_features"][0].numpy())


def test_M5_several_videos_keep_their_grids_in_order(processors):
    # 4 and 8 frames at 2 a second are all kept: 2 and 4 temporal layers of 40x48 -> 32x48 pixels = 4x6 patches
    grids = [processors["omni"].extract(video(n, fps=2.0)).tensors["video_grid_thw"].tolist() for n in (4, 8)]
    assert grids == [[2, 4, 6], [4, 4, 6]]


def test_M6_frame_numbers_seconds_and_time_stamps_of_a_30_frame_clip(processors):
    # 10 frames a second, 2 kept: 3 s x 2 = 6 frames, evenly spaced over 0..29: 0, 5.8, 11.6, 17.4, 23.2, 29
    clip = video(30, fps=10.0)
    decoded = decode.decode_video(clip.data, where="")
    assert decoded.indices == (0, 6, 12, 17, 23, 29)
    assert (decoded.total, decoded.source_fps, decoded.sampled_fps) == (30, 10.0, 2.0)
    # two frames make a layer, which lasts 2 / 2 fps = 1 s
    assert float(processors["omni"].extract(clip).tensors["video_second_per_grid"]) == 1.0
    assert float(processors["qwen2_5_vl"].extract(clip).tensors["second_per_grid_ts"]) == 1.0
    # a layer's stamp is the mean time of its two frames: (0 + .6) / 2, (1.2 + 1.7) / 2, (2.3 + 2.9) / 2
    text = processors["qwen3_vl"].processor.tokenizer.decode(processors["qwen3_vl"].extract(clip).expansion)
    stamps = [piece.split(" seconds>")[0] for piece in text.split("<") if "seconds>" in piece]
    assert stamps == ["0.3", "1.4", "2.6"]


def test_a_tiny_clip_is_not_blown_up_by_the_omni_class_defaults(processors):
    media = processors["omni"]
    item = load("video", {"array": noise(4, 56, 56, 3), "fps": 2.0})
    assert media.extract(item).num_tokens == 2 * 4 * 4  # 56 -> 64 pixels (rounded to 16): 4x4 tokens a layer
    raw = decode.decode_video(item.data, where="").frames
    careless = media.processor(text=["<|video_pad|>"], videos=[raw], return_tensors="pt")
    assert (careless["input_ids"] == media.placeholder_ids["video"]).sum() > 1000


def test_M10_an_image_is_resized_once_to_the_grid_of_the_processor(processors):
    # 100 x 60 pixels: 96 x 64 after rounding to 16-pixel tokens, so 12 x 8 patches of 8 pixels and 6 x 4 tokens
    features = processors["omni"].extract(image(100, 60))
    assert features.tensors["image_grid_thw"].tolist() == [1, 12, 8]
    assert features.tensors["pixel_values"].shape == (96, 3 * 2 * 8 * 8)
    assert features.num_tokens == 24


@pytest.mark.parametrize(
    ("samples", "frames", "tokens"),
    [
        # frames = samples / 160; a chunk of 100 frames is 13 tokens, a rest r is ceil(ceil(ceil(r/2)/2)/2)
        (16000, 100, 13),
        (16000 * 35, 3500, 455),  # longer than the 30 s window of Whisper
        (7000, 43, 6),
        (160, 2, 1),  # 0.01 s, lengthened to one window of 0.025 s = 400 samples
        (1, 2, 1),
    ],
)
def test_M12_audio_length_of_the_omni_model(processors, samples, frames, tokens):
    features = processors["omni"].extract(sound(samples))
    assert features.tensors["input_features"].shape == (128, frames)
    assert features.tensors["feature_attention_mask"].tolist() == [1] * frames
    assert features.num_tokens == tokens


def test_features_do_not_depend_on_what_was_extracted_before(processors):
    fresh = MediaProcessor(tiny_omni_processor())
    for item in (sound(7000), image(), video(8)):
        ours, theirs = processors["omni"].extract(item), fresh.extract(item)
        assert ours.tensors.keys() == theirs.tensors.keys()
        assert all(np.array_equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


def test_M14_the_hash_of_the_features_is_that_of_the_bytes_sent(processors):
    import base64
    import hashlib

    item = image()
    sent = base64.b64decode(item.data_uri().partition(",")[2])
    assert hashlib.sha256(sent).hexdigest() == processors["omni"].extract(item).sha256


def test_features_go_through_the_bus_columns(processors):
    features = [processors["omni"].extract(item) for item in (image(), sound(800), video(8))]
    back = media_from_columns(media_columns(features))
    assert [(f.kind, f.sha256, f.num_tokens) for f in back] == [(f.kind, f.sha256, f.num_tokens) for f in features]
    assert all(
        np.array_equal(a.tensors[n], b.tensors[n]) for a, b in zip(features, back, strict=True) for n in a.tensors
    )


# --------------------------------------------------------------------------- ids


def test_placeholders_and_suppressed_ids_come_from_the_tokenizer(processors):
    tokenizer = tiny_tokenizer()
    of = tokenizer.convert_tokens_to_ids
    assert processors["omni"].placeholder_ids == {
        "image": of("<|image_pad|>"),
        "audio": of("<|audio_pad|>"),
        "video": of("<|video_pad|>"),
    }
    assert processors["qwen3_vl"].kinds == ("image", "video")
    names = [
        "vision_start",
        "vision_end",
        "vision_pad",
        "image_pad",
        "video_pad",
        "audio_start",
        "audio_end",
        "audio_pad",
    ]
    assert processors["omni"].suppressed_ids == tuple(sorted(of(f"<|{name}|>") for name in names))
    assert tokenizer.eos_token_id not in processors["omni"].suppressed_ids


def test_a_text_only_model_has_no_media_and_suppresses_nothing():
    media = MediaProcessor(None, tokenizer=tiny_tokenizer())
    assert (media.placeholder_ids, media.suppressed_ids, media.kinds) == ({}, (), ())
    assert media.expand([6, 7, 20], []) == [6, 7, 20]
    with pytest.raises(DataError, match="reads no image"):
        media.extract(image())


def test_a_modality_that_the_model_lacks_is_refused(processors):
    with pytest.raises(DataError, match=r"reads no audio \(it reads: image, video\)"):
        processors["qwen3_vl"].extract(sound(800))


def features(kind: str, tokens: int) -> MediaFeatures:
    return MediaFeatures(kind, "0" * 64, {}, tokens)


def test_expand_replaces_the_kth_placeholder_by_the_kth_item(processors):
    media = processors["omni"]
    pic, wav = media.placeholder_ids["image"], media.placeholder_ids["audio"]
    own = MediaFeatures("image", "0" * 64, {}, 2, (50, pic, 51, pic, 52))
    expanded = media.expand([1, pic, 2, wav, pic], [features("image", 3), features("audio", 1), own])
    assert expanded == [1, pic, pic, pic, 2, wav, 50, pic, 51, pic, 52]
    assert media.spans([1, pic, 2, wav, pic], [features("image", 3), features("audio", 1), own]) == [1, 3, 1, 1, 5]


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["image"], "1 image"),
        (["image", "image", "image"], "3 image"),
        (["audio", "image"], r"1 image, 1 audio \(in the order audio, image\)"),
        ([], "no media"),
    ],
)
def test_M3_expand_refuses_other_counts_or_kinds(processors, kinds, words):
    media = processors["omni"]
    pic = media.placeholder_ids["image"]
    with pytest.raises(DataError, match=rf"row.jsonl:3: the prompt has placeholders for 2 image, .*{words}"):
        media.expand([pic, 1, pic], [features(kind, 1) for kind in kinds], where="row.jsonl:3")


# --------------------------------------------------------------------------- options, cache, copies


def test_token_limits_bound_images_and_videos():
    limited = MediaProcessor(
        tiny_omni_processor(), MediaOptions(image_min_tokens=9, image_max_tokens=16, video_max_tokens=8, video_fps=1.0)
    )
    assert 9 <= limited.extract(image(16, 16)).num_tokens <= 16
    assert 9 <= limited.extract(image(300, 300)).num_tokens <= 16
    with pytest.raises(ConfigError, match="--image-min-tokens 9 is above --image-max-tokens 4"):
        MediaProcessor(tiny_omni_processor(), MediaOptions(image_min_tokens=9, image_max_tokens=4)).extract(image())


@pytest.mark.parametrize(
    ("options", "words"),
    [  # 32 x 32 to 128 x 128 pixels are saved, and a token is 16 x 16
        (
            MediaOptions(image_min_tokens=65),
            "--image-min-tokens 65 is above the most that the saved .* allows, 64: lower",
        ),
        (
            MediaOptions(image_max_tokens=3),
            "--image-max-tokens 3 is below the least that the saved .* allows, 4: raise",
        ),
    ],
)
def test_a_limit_that_contradicts_the_saved_one_is_compared_with_it_by_name(options, words):
    with pytest.raises(ConfigError, match=words):
        MediaProcessor(tiny_omni_processor(), options).extract(image())


@pytest.mark.parametrize("make", [tiny_omni_processor, tiny_vl_processor])
def test_video_token_limits_are_per_frame_in_every_family(make):
    limited = MediaProcessor(make(), MediaOptions(video_min_tokens=4, video_max_tokens=9, video_fps=1.0))
    for size, frames, tokens in ((200, 8, 9), (8, 16, 4)):
        clip = limited.extract(load("video", {"array": noise(frames, size, size, 3), "fps": 2.0}))
        layers = int(clip.tensors["video_grid_thw"][0])
        assert layers == frames // 4  # half of the frames are kept, and two of them make a layer
        assert clip.num_tokens == tokens * layers


def test_the_cache_holds_each_item_once_and_stays_below_its_limit():
    size = MediaProcessor(tiny_omni_processor()).extract(image()).tensors["pixel_values"].nbytes + 24
    media = MediaProcessor(tiny_omni_processor(), cache_bytes=2 * size)
    first = media.extract(image(seed=1))
    assert media.extract(image(seed=1)) is first
    media.extract(image(seed=2))
    media.extract(image(seed=3))
    assert media.extract(image(seed=1)) is not first
    assert media._cache._held == 2 * size


def test_a_pickled_processor_gives_the_same_features(processors):
    copy = pickle.loads(pickle.dumps(processors["omni"]))
    item = image(seed=9)
    ours, theirs = processors["omni"].extract(item).tensors, copy.extract(item).tensors
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_prompt_of_four_modalities_builds_end_to_end(processors):
    media = processors["omni"]
    builder = PromptBuilder(
        media.processor.tokenizer, media, apply_chat_template=True, multimodal_keys=["image", "audio", "video"]
    )
    row = RawRow(
        {
            "input": [{"role": "user", "content": "<image><audio><video>What happened?"}],
            "image": [noise(32, 32, 3)],
            "audio": [np.zeros(1600, np.float32)],
            "video": [{"array": noise(4, 32, 32, 3), "fps": 2.0}],
        },
        "data.jsonl:1",
        Path("/nowhere"),
    )
    prepared = builder.build(row)
    expected = whole_prompt(media.processor, prepared.prompt_text, prepared.media)
    assert prepared.expanded_ids == expected["input_ids"][0].tolist()
