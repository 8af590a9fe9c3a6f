# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.data.chat import (
    OverlongPrompt,
    PromptBuilder,
    canonical_call,
    kept_range,
    parse_multimodal_keys,
    plain,
)
from relax.data.datasets import RawRow
from relax.data.media.decode import decode_image, encode_png, encode_wav
from relax.data.media.items import MediaItem
from relax.data.media.processing import MediaProcessor
from relax.utils.errors import ConfigError, DataError, UserCodeError
from tests.builders import tiny_omni_processor, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
KEYS = {"image": "image", "audio": "audio", "video": "video"}


@pytest.fixture(scope="module")
def media() -> MediaProcessor:
    return MediaProcessor(tiny_omni_processor())


def row(**values) -> RawRow:
    return RawRow(values, "data.jsonl:7", Path("/nowhere"))


def picture(height: int = 32, width: int = 32, shade: int = 0) -> np.ndarray:
    return np.full((height, width, 3), shade, np.uint8)


def text_builder(**options) -> PromptBuilder:
    return PromptBuilder(TOKENIZER, **({"apply_chat_template": True} | options))


def media_builder(media: MediaProcessor, **options) -> PromptBuilder:
    return PromptBuilder(
        media.processor.tokenizer, media, **({"apply_chat_template": True, "multimodal_keys": KEYS} | options)
    )


# --------------------------------------------------------------------------- text


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 3 plus 4?"},
    {"role": "assistant", "content": "7"},
    {"role": "user", "content": [{"type": "text", "text": "And 5 plus "}, {"type": "text", "text": "6?"}]},
]


@pytest.mark.parametrize("prompt", [MESSAGES, "What is 3 plus 4?", "\U0001f600 <image> \u4f60\u597d\n"])
def test_text_prompts_have_the_ids_of_the_tokenizers_own_template(prompt):
    prepared = text_builder().build(row(input=prompt))
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    expected = TOKENIZER.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)["input_ids"]
    assert prepared.token_ids == prepared.expanded_ids == expected
    assert TOKENIZER.decode(prepared.token_ids) == prepared.prompt_text
    assert prepared.media == [] and prepared.multimodal_inputs() is None


def test_without_a_template_a_string_is_taken_as_it_is_and_messages_stay_messages():
    plain_text = text_builder(apply_chat_template=False).build(row(input="What is 3 plus 4?"))
    assert plain_text.prompt == "What is 3 plus 4?" and plain_text.messages is None
    assert plain_text.token_ids == TOKENIZER("What is 3 plus 4?")["input_ids"]
    kept = text_builder(apply_chat_template=False).build(row(input=MESSAGES))
    assert kept.prompt == MESSAGES and kept.prompt_text is None and kept.token_ids == []


def bos_tokenizer():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|bos|>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    return tokenizer


@pytest.mark.parametrize("template", [True, False])
@pytest.mark.parametrize("prompt", ["Hi", "<|bos|>Hi"])
def test_there_is_one_bos_at_the_front(template, prompt):
    tokenizer = bos_tokenizer()
    assert tokenizer("Hi")["input_ids"][0] == tokenizer.bos_token_id
    ids = PromptBuilder(tokenizer, apply_chat_template=template).build(row(input=prompt)).token_ids
    inside = 1 if template and prompt.startswith("<|bos|>") else 0  # the user's own text is rendered as written
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1 + inside


def test_the_system_prompt_goes_in_front():
    prepared = text_builder(system_prompt="Answer only.").build(row(input="Hi"))
    assert prepared.messages == [{"role": "system", "content": "Answer only."}, {"role": "user", "content": "Hi"}]
    assert prepared.prompt_text.startswith("<|im_start|>system\nAnswer only.<|im_end|>\n<|im_start|>user\nHi")


def test_a_plain_text_has_no_place_for_a_system_prompt():
    with pytest.raises(DataError, match=r"jsonl:7: .*no place for --system-prompt; add --apply-chat-template"):
        text_builder(system_prompt="Answer only.", apply_chat_template=False).build(row(input="Hi"))


def test_template_options_of_the_row_win_over_those_of_the_run():
    builder = text_builder(
        chat_template="{{ mood }}/{{ tone }}/{{ messages[0].content }}",
        chat_template_kwargs={"mood": "a", "tone": "b"},
    )
    assert builder.build(row(input="x")).prompt_text == "a/b/x"
    own = {"apply_chat_template_kwargs": {"tone": "c"}}
    assert builder.build(row(input="x", metadata=own)).prompt_text == "a/c/x"
    assert builder.build(row(input="x", metadata={"chat_template": "T{{ mood }}"})).prompt_text == "Ta"


def test_a_users_function_edits_the_prompt_before_the_template():
    builder = text_builder(
        custom_prompt=lambda prompt, data: f"{prompt} Hint: {data['hint']}", chat_template="{{ messages[0].content }}"
    )
    assert builder.build(row(input="x", hint="y")).prompt_text == "x Hint: y"


def shout(prompt, data):
    return prompt.upper() if data.get("label") else None


def test_a_users_function_that_fails_is_named_with_its_row():
    with pytest.raises(UserCodeError, match=r"test_chat\.shout \(sample data.jsonl:7\): AttributeError"):
        text_builder(custom_prompt=shout).build(row(input=[], label=1))
    with pytest.raises(UserCodeError, match="returned None"):
        text_builder(custom_prompt=shout).build(row(input="x"))


def test_the_chat_template_key_of_the_options_wins_over_the_flag():
    builder = text_builder(chat_template="flag", chat_template_kwargs={"chat_template": "option"})
    assert builder.build(row(input="x")).prompt_text == "option"


def test_a_tokenizer_without_template_is_refused_at_start():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="--chat-template FILE"):
        PromptBuilder(tokenizer, apply_chat_template=True)


def test_a_template_that_fails_names_the_row():
    with pytest.raises(DataError, match=r"^data.jsonl:7: the chat template fails .*no tools today"):
        text_builder(chat_template="{{ raise_exception('no tools today') }}").build(row(input="x"))


# --------------------------------------------------------------------------- columns


def test_labels_keep_their_own_type():
    for label in ("34", 34, [1, 2], {"a": None}, None, 0.5):
        assert text_builder(label_key="y").build(row(input="x", y=label)).label == label


def test_a_missing_column_names_flag_columns_and_the_near_one():
    with pytest.raises(
        DataError, match=r"data.jsonl:7: --input-key 'prompts' .*\['label', 'prompt'\].*did you mean 'prompt'"
    ):
        text_builder(input_key="prompts").build(row(prompt="x", label=1))
    with pytest.raises(DataError, match="--label-key 'answer' is not in the row"):
        text_builder(label_key="answer").build(row(input="x"))


@pytest.mark.parametrize(
    "prompt", [3, [], {"role": "user"}, ["text"], [{"content": "x"}], [{"role": "user", "content": 3}]]
)
def test_a_prompt_of_a_wrong_shape_names_the_row(prompt):
    with pytest.raises(DataError, match=r"data.jsonl:7"):
        text_builder().build(row(input=prompt))


def test_metadata_is_an_object_or_json_and_gets_the_columns_nobody_named():
    builder = text_builder(label_key="label")
    for metadata in ({"rm_type": "math"}, json.dumps({"rm_type": "math"})):
        found = builder.build(row(input="x", label=1, metadata=metadata, data_source="gsm8k", pixels=b"123")).metadata
        assert found == {"rm_type": "math", "data_source": "gsm8k"}
    assert builder.build(row(input="x", label=1, metadata={"level": 1}, level=9)).metadata == {"level": 1}
    with pytest.raises(DataError, match="--metadata-key 'metadata' is not JSON"):
        builder.build(row(input="x", label=1, metadata="{"))


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "tools",
    [[TOOL], json.dumps([TOOL]), [json.dumps(TOOL)], np.array([TOOL], dtype=object), TOOL],
    ids=["list", "json", "list of json", "array", "single"],
)
def test_tools_of_every_form_reach_template_and_metadata(tools):
    builder = text_builder(chat_template="{{ tools | tojson }}")
    prepared = builder.build(row(input="x", tools=tools))
    assert prepared.tools == prepared.metadata["tools"] == json.loads(prepared.prompt_text) == [TOOL]


def test_no_tools_are_none():
    for tools in (None, [], "", "  "):
        assert text_builder().build(row(input="x", tools=tools)).tools is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": 1, "b": "x"},
        '{"a": 1, "b": "x"}',
        [["a", 1], ["b", "x"]],
        [{"name": "a", "value": 1}, {"key": "b", "value": "x"}],
    ],
)
def test_D3_tool_call_arguments_have_one_form_and_the_row_keeps_its_own(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    before = json.dumps(messages)
    prepared = text_builder().build(row(input=messages))
    assert prepared.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": "x"}
    assert '<tool_call>add {"a": 1, "b": "x"}</tool_call>' in prepared.prompt_text
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("given", "expected"), [("not json", "not json"), ("", {}), (None, {}), ('"{\\"a\\": 1}"', '"{\\"a\\": 1}"')]
)
def test_D3_other_arguments(given, expected):
    assert canonical_call({"name": "f", "arguments": given})["arguments"] == expected


def test_D2_D9_numpy_values_become_plain_ones():
    value = {
        "m": np.array([{"c": np.array(["a", "b"], dtype=object)}], dtype=object),
        "n": np.int64(3),
        "f": np.float32(0.5),
    }
    assert plain(value) == {"m": [{"c": ["a", "b"]}], "n": 3, "f": 0.5}
    assert json.dumps(plain(value)) == '{"m": [{"c": ["a", "b"]}], "n": 3, "f": 0.5}'


# --------------------------------------------------------------------------- media


def pads(prepared, media: MediaProcessor) -> list[str]:
    names = {token: kind for kind, token in media.placeholder_ids.items()}
    return [names[token] for token in prepared.token_ids if token in names]


def test_placeholders_take_the_media_of_their_column_in_order(media):
    prompt = "first <image> then <audio>, again <image><image>"
    first, second, third = picture(shade=1), picture(64, 32, shade=2), picture(shade=3)
    sound = np.zeros(1600, np.float32)
    prepared = media_builder(media).build(row(input=prompt, image=[first, second, third], audio=sound))
    assert [item.kind for item in prepared.media] == ["image", "audio", "image", "image"] == pads(prepared, media)
    assert [item.num_tokens for item in prepared.features if item.kind == "image"] == [4, 8, 4]  # 16-pixel tokens
    assert len(prepared.expanded_ids) == len(prepared.token_ids) - 4 + sum(f.num_tokens for f in prepared.features)
    assert prepared.messages[0]["content"][0] == {"type": "text", "text": "first "}
    assert "first <|vision_start|><|image_pad|><|vision_end|> then <|audio_start|>" in prepared.prompt_text
    assert {kind: len(items) for kind, items in prepared.multimodal_inputs().items()} == {"image": 3, "audio": 1}
    colours = [int(item.tensors["pixel_values"][0, 0] * 1e6) for item in prepared.features if item.kind == "image"]
    assert colours == sorted(colours)  # the shades 1, 2, 3 in this order


@pytest.mark.parametrize(
    ("prompt", "images", "counts"),
    [
        ("look: <image><image>", [picture()], ["has 2 <image>", "has 1 image"]),
        ("look: <image>", [picture(), picture()], ["has 1 <image>", "has 2 image"]),
        ("look", picture(), ["has 0 <image>", "has 1 image"]),
        ("look: <image>", None, ["has 1 <image>", "has 0 image"]),
        ("look: <image>", [], ["has 1 <image>", "has 0 image"]),
    ],
)
def test_M1_M3_a_count_that_is_not_even_names_row_counts_and_text(media, prompt, images, counts):
    with pytest.raises(DataError) as error:
        media_builder(media).build(row(input=prompt, image=images))
    assert all(words in str(error.value) for words in ["data.jsonl:7", "look", *counts])
    assert error.value.where == "data.jsonl:7"


def test_M1_rows_with_zero_one_and_three_images_build(media):
    for count in (0, 1, 3):
        prepared = media_builder(media).build(row(input="<image>" * count + "x", image=[picture()] * count))
        assert len(prepared.media) == count == len(pads(prepared, media))


def test_M1_a_pad_token_in_the_users_own_text_is_counted(media):
    with pytest.raises(DataError, match=r"data.jsonl:7: the prompt has placeholders for 2 image, .* 1 image; text: "):
        media_builder(media).build(row(input="<image> <|image_pad|>", image=picture()))
    with pytest.raises(DataError, match=r"placeholders for 1 audio, the row's media are no media"):
        media_builder(media, multimodal_keys=None).build(row(input="<|audio_pad|>"))


def test_only_named_modalities_are_read(media):
    builder = media_builder(media, multimodal_keys={"image": "image"})
    prepared = builder.build(row(input="<image> <audio>", image=picture(), audio="missing.wav"))
    assert [item.kind for item in prepared.media] == ["image"]
    assert "<audio>" in prepared.prompt_text
    with pytest.raises(DataError, match="--multimodal-keys does not name audio"):
        builder.build(row(input=[{"role": "user", "content": [{"type": "audio"}]}]))


def png_uri(array: np.ndarray) -> str:
    return MediaItem.of("image", encode_png(array)).data_uri()


def test_typed_parts_bring_their_medium_or_take_the_next_of_the_column(media):
    wav = MediaItem.of("audio", encode_wav(np.zeros(800), 16000))
    content = [
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": png_uri(picture(shade=2))}},
        {"type": "image_url", "image_url": png_uri(picture(shade=3))},
        {"type": "image", "image": {"bytes": None, "path": png_uri(picture(shade=4))}},
        {"type": "input_audio", "input_audio": {"data": wav.data_uri().split(",")[1], "format": "wav"}},
        {"type": "text", "text": "and <image>"},
    ]
    prepared = media_builder(media).build(
        row(input=[{"role": "user", "content": content}], image=[picture(shade=1), picture(shade=5)])
    )
    assert [item.kind for item in prepared.media] == ["image"] * 4 + ["audio", "image"]
    shades = [decode_image(i.data, where="").getpixel((0, 0))[0] for i in prepared.media if i.kind == "image"]
    assert shades == [1, 2, 3, 4, 5]


def test_nulls_that_arrow_adds_to_parts_are_no_media(media):
    content = [
        {"type": "image", "image": None, "text": None, "image_url": None},
        {"type": "text", "text": "hi", "image": None},
    ]
    prepared = media_builder(media).build(row(input=[{"role": "user", "content": content}], image=[picture()]))
    assert prepared.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "hi"}]


def test_an_unknown_part_type_names_the_known_ones():
    with pytest.raises(DataError, match=r"unknown type 'hologram'; known are text, image"):
        text_builder().build(row(input=[{"role": "user", "content": [{"type": "hologram"}]}]))


def test_media_for_a_model_without_processor_are_refused():
    builder = PromptBuilder(TOKENIZER, None, apply_chat_template=True, multimodal_keys=KEYS)
    with pytest.raises(DataError, match="no processor"):
        builder.build(row(input="<image>", image=picture()))


def test_a_ready_made_prompt_is_checked_by_its_pad_ids(media):
    builder = media_builder(media, apply_chat_template=False)
    text = "<|vision_start|><|image_pad|><|vision_end|>hi"
    prepared = builder.build(row(input=text, image=picture()))
    assert prepared.prompt == text and prepared.expanded_ids.count(media.placeholder_ids["image"]) == 4
    with pytest.raises(DataError, match="no media, the row's media are 1 image"):
        builder.build(row(input="<image>hi", image=picture()))


# --------------------------------------------------------------------------- C3: --multimodal-keys


def test_C3_list_form_finds_the_column_by_name(media):
    builder = media_builder(media, multimodal_keys="text,image")
    for name in ("image", "images", "image_key"):
        prepared = builder.build(row(input="<image>", **{name: picture()}))
        assert len(prepared.media) == 1 and name not in prepared.metadata
    with pytest.raises(DataError, match=r"the row has \['images', 'image_key'\]"):
        builder.build(row(input="<image>", images=picture(), image_key=picture()))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"image": "img"}', {"image": "img"}),
        ({"image": "img", "text": "t"}, {"image": "img"}),
        ("text,image,audio,video", {"image": None, "audio": None, "video": None}),
        (["image"], {"image": None}),
        ({"image": None, "audio": "a"}, {"image": None, "audio": "a"}),
        ('["video"]', {"video": None}),
        ("text", {}),
        (None, {}),
        ("", {}),
    ],
)
def test_C3_both_forms_in_both_spellings(value, expected):
    assert parse_multimodal_keys(value) == expected


@pytest.mark.parametrize("value", ["images", '{"img": "x"}', '{"image": ["a", "b"]}', "{image"])
def test_C3_unknown_words_are_refused(value):
    with pytest.raises(ConfigError, match="--multimodal-keys"):
        parse_multimodal_keys(value)


# --------------------------------------------------------------------------- over-long prompts


def test_T9_an_overlong_prompt_raises_with_both_lengths():
    length = len(text_builder().build(row(input="What is 3 plus 4?")).token_ids)
    text_builder(max_prompt_len=length).build(row(input="What is 3 plus 4?"))
    with pytest.raises(OverlongPrompt, match=f"data.jsonl:7: the prompt has {length} tokens.*{length - 1}") as error:
        text_builder(max_prompt_len=length - 1).build(row(input="What is 3 plus 4?"))
    assert (error.value.length, error.value.limit) == (length, length - 1)


@pytest.mark.parametrize("side", ["truncate_left", "truncate_right"])
def test_T9_truncation_cuts_the_stated_side(side):
    whole = text_builder().build(row(input="What is 3 plus 4?")).token_ids
    cut = text_builder(max_prompt_len=5, overlong=side).build(row(input="What is 3 plus 4?"))
    assert cut.token_ids == cut.expanded_ids == (whole[-5:] if side == "truncate_left" else whole[:5])


def test_M4_a_limit_inside_a_medium_drops_the_whole_medium(media):
    data = row(input="ab<image>cd<image>ef", image=[picture(64, 64, 1), picture(32, 32, 2)])  # 16 and 4 tokens
    whole = media_builder(media).build(data)
    pad = media.placeholder_ids["image"]
    for limit in range(1, len(whole.expanded_ids)):
        for side in ("truncate_left", "truncate_right"):
            cut = media_builder(media, max_prompt_len=limit, overlong=side).build(data)
            assert 0 < len(cut.expanded_ids) <= limit
            count = len(cut.expanded_ids)
            assert cut.expanded_ids == (
                whole.expanded_ids[-count:] if side == "truncate_left" else whole.expanded_ids[:count]
            )
            assert cut.expanded_ids.count(pad) == sum(item.num_tokens for item in cut.features)
            assert [f.sha256 for f in cut.features] == [m.sha256 for m in cut.media]
            kept = (
                whole.media[-len(cut.media) :]
                if side == "truncate_left" and cut.media
                else whole.media[: len(cut.media)]
            )
            assert cut.media == kept


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 40))
@settings(max_examples=100)
def test_M4_the_kept_range_is_the_longest_that_fits(costs, limit):
    for side in ("truncate_left", "truncate_right"):
        kept = kept_range(costs, limit, side=side)
        assert sum(costs[kept.start : kept.stop]) <= limit
        if len(kept) < len(costs):
            more = range(kept.start - 1, kept.stop) if side == "truncate_left" else range(kept.start, kept.stop + 1)
            assert sum(costs[more.start : more.stop]) > limit


def test_building_twice_gives_the_same_and_changes_nothing(media):
    data = row(input=[{"role": "user", "content": "<image>x"}], image=[picture()], metadata={"a": [1]})
    first, second = media_builder(media).build(data), media_builder(media).build(data)
    assert first.expanded_ids == second.expanded_ids and first.messages == second.messages
    first.metadata["new"] = 1
    assert data.values["metadata"] == {"a": [1]} and data.values["input"] == [{"role": "user", "content": "<image>x"}]


def test_A27_threads_build_what_one_thread_builds():
    media = MediaProcessor(tiny_omni_processor())
    builder = media_builder(media)
    rows = [row(input=f"<image>What is {i}?", image=picture(32, 32 + 16 * (i % 3), i)) for i in range(24)]
    expected = [media_builder(MediaProcessor(tiny_omni_processor())).build(data).expanded_ids for data in rows]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            assert [prepared.expanded_ids for prepared in threads.map(builder.build, rows)] == expected
