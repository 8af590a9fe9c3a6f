# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Films and sounds of a run whose engine is SGLang. What SGLang itself makes of them: tests/conformance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relax.data.chat import PromptBuilder
from relax.data.datasets import RawRow
from relax.data.media import decode, sglang_films
from relax.data.media.items import MediaItem, load_media
from relax.data.media.processing import MediaOptions, MediaProcessor
from relax.utils.errors import DataError
from tests.builders import tiny_omni_processor, tiny_tokenizer, tiny_vl_processor

AS_SGLANG = MediaOptions(as_sglang=True)


def film(frames: int, height: int, width: int, fps: float) -> MediaItem:
    pixels = np.random.RandomState(0).randint(0, 255, (frames, height, width, 3), dtype=np.uint8)
    return load_media("video", {"array": pixels, "fps": fps}, folder=Path("/nowhere"), where="row")


def stereo(rate: int = 44_100) -> MediaItem:
    return MediaItem.of("audio", decode.encode_wav(np.random.RandomState(1).randn(rate, 2) * 0.1, rate))


@pytest.mark.parametrize(
    ("total", "source_fps", "limits", "expected"),
    [
        (30, 10.0, (4, 768), (0, 5, 11, 17, 23, 29)),  # multiples of 29 / 5 = 5.8, cut off; rounded: 6, 12, 17, 23
        (8, 8.0, (4, 768), (0, 2, 4, 7)),  # multiples of 7 / 3
        (8, 8.0, (5, 768), (0, 1, 2, 4, 5, 7)),  # at least 5 are at least 6: multiples of 7 / 5
        (30, 10.0, (2, 5), (0, 9, 19, 29)),  # at most 5 are at most 4: multiples of 29 / 3
        (3, 1.0, (4, 768), (0, 2)),  # fewer than the minimum: the even part of what there is
        (1, 25.0, (4, 768), ()),  # refused
    ],
)
def test_frame_numbers_are_cut_off(total, source_fps, limits, expected):
    least, most = limits
    found = sglang_films.frame_numbers(total, source_fps, fps=2.0, min_frames=least, max_frames=most, factor=2)
    assert found == expected


def test_sides_are_the_nearest_multiples_of_28():
    assert sglang_films.sides(112, 112) == (112, 112)
    assert sglang_films.sides(60, 100) == (56, 112)  # 2.14 and 3.57 times 28
    assert sglang_films.sides(9, 41) == (28, 28)
    frames = np.full((2, 60, 100, 3), 77, np.uint8)
    assert sglang_films.resized(frames).shape == (2, 56, 112, 3) and (sglang_films.resized(frames) == 77).all()
    same = np.zeros((1, 56, 28, 3), np.uint8)
    assert sglang_films.resized(same) is same


def test_an_omni_film_has_sglangs_frames_and_a_frame_a_second():
    clip = film(30, 60, 100, fps=10.0)  # 3 s: six frames, of which two make a layer
    ours = MediaProcessor(tiny_omni_processor()).extract(clip).tensors
    theirs = MediaProcessor(tiny_omni_processor(), AS_SGLANG).extract(clip).tensors
    assert float(ours["video_second_per_grid"]) == 1.0  # six frames of three seconds, two at a time
    assert float(theirs["video_second_per_grid"]) == 2.0
    assert theirs["video_grid_thw"].tolist() == [3, 8, 14]  # 56 and 112 become 64 and 112, in patches of 8
    whole = decode.decode_video(clip.data, where="", fps=10.0).frames
    pixels = sglang_films.resized(whole[[0, 5, 11, 17, 23, 29]])
    alone = MediaProcessor(tiny_omni_processor()).extract(
        load_media("video", {"array": pixels, "fps": 2.0}, folder=Path("/nowhere"), where="row")
    )
    assert np.array_equal(alone.tensors["pixel_values_videos"], theirs["pixel_values_videos"])


def test_a_film_that_sglang_refuses_is_refused_before_it_is_sent():
    with pytest.raises(DataError, match=r"row.*too few frames for the engine: 1"):
        MediaProcessor(tiny_omni_processor(), AS_SGLANG).extract(film(1, 56, 56, fps=1.0), where="row")


def test_sglang_gets_the_samples_that_the_trainer_hears():
    media = MediaProcessor(tiny_omni_processor(), AS_SGLANG)
    sent = media.as_sent(stereo(), where="row")
    rate16 = decode.decode_audio(sent.data, where="row", rate=16_000)
    assert len(rate16) == 16_000 and np.array_equal(rate16, decode.decode_audio(stereo().data, where="row"))
    assert np.array_equal(
        media.extract(sent).tensors["input_features"], media.extract(stereo()).tensors["input_features"]
    )
    assert media.as_sent(sent, where="row") == sent


def test_what_needs_no_change_is_sent_as_it_is():
    mono = MediaItem.of("audio", decode.encode_wav(np.zeros(16_000), 16_000))
    picture = load_media("image", np.zeros((8, 8, 3), np.uint8), folder=Path("/nowhere"), where="row")
    media = MediaProcessor(tiny_omni_processor(), AS_SGLANG)
    assert all(media.as_sent(item, where="row") is item for item in (picture, film(4, 56, 56, fps=2.0)))
    assert media.as_sent(mono, where="row") == mono
    sound = stereo()
    assert MediaProcessor(tiny_omni_processor()).as_sent(sound, where="row") is sound


def test_a_prompt_holds_its_sounds_as_they_are_sent():
    media = MediaProcessor(tiny_omni_processor(), AS_SGLANG)
    builder = PromptBuilder(
        tiny_tokenizer(), media, input_key="input", multimodal_keys={"audio": "audio"}, apply_chat_template=True
    )
    row = RawRow({"input": "<audio> listen", "audio": [stereo().data]}, "data.jsonl:1", Path("/nowhere"))
    prepared = builder.build(row)
    assert prepared.media == [media.as_sent(stereo(), where="row")]
    assert prepared.features[0].sha256 == prepared.media[0].sha256


def test_time_stamps_of_a_vl_film_are_those_of_the_frames_that_sglang_takes():
    """Qwen3-VL writes a time stamp before each pair of frames: of 0 5, 11 17 and 23 29 at 10 a second."""
    processor = tiny_vl_processor("qwen3_vl")
    media = MediaProcessor(processor, AS_SGLANG)
    text = processor.tokenizer.decode(media.extract(film(30, 56, 56, fps=10.0)).expansion)
    stamps = [part.split(">")[-1] for part in text.split(" seconds")[:-1]]
    assert [float(stamp.strip("<")) for stamp in stamps] == [0.2, 1.4, 2.6]
