# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF009 (`flag` makes a dataclass field)
"""Where prompts come from and how a row becomes a sample."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag, import_path, parse_json
from relax.config.frozen import FrozenDict
from relax.utils.types import MODALITIES

MODALITY_WORDS = ("text", *MODALITIES)


def parse_media_keys(text: str) -> FrozenDict:
    """The JSON map {modality: column}, or a comma list of modalities whose columns are found from the data (None)."""
    if text.lstrip().startswith("{"):
        return parse_json(text)
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in MODALITY_WORDS]
    if unknown or not words:
        raise argparse.ArgumentTypeError(
            f'expected a JSON map such as {{"image": "images"}} or a list of {", ".join(MODALITY_WORDS)}, got {text!r}'
        )
    return FrozenDict({word: None for word in words if word != "text"})


def _media_keys(value: FrozenDict) -> str | None:
    wrong = [key for key in value if key not in MODALITIES]
    return f"takes the keys {', '.join(MODALITIES)}" if wrong else None


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    """Prompts, their columns, the chat template and media."""

    prompt_data: str | None = flag(
        None,
        help="A .jsonl or .parquet file, a folder of them, a list [a,b], each with an optional slice @[start:end].",
    )
    input_key: str = flag("input", help="Column of the prompt: text or a list of messages.")
    label_key: str | None = flag(None, help="Column of the label that the reward compares with.")
    metadata_key: str = flag("metadata", help="Column of the row's metadata.")
    tool_key: str = flag("tools", help="Column of the tools that the chat template shows.")
    multimodal_keys: FrozenDict | None = flag(
        None,
        parse=parse_media_keys,
        check=_media_keys,
        help='Media columns, {"image": "column", ...}, or a list: image,audio.',
    )
    apply_chat_template: bool = flag(False, help="Render message lists with the model's chat template.")
    apply_chat_template_kwargs: FrozenDict = flag(FrozenDict(), help="Arguments of the chat template as JSON.")
    chat_template: str | None = flag(None, help="File of a Jinja chat template, in place of the model folder's.")
    system_prompt: str | None = flag(None, help="Text of a system message put before the prompt.")
    custom_prompt_path: str | None = flag(
        None,
        help="Function (prompt, row) -> prompt that edits prompts before the template, in evaluation too.",
        check=import_path,
    )
    use_streaming_dataset: bool = flag(False, help="Read rows when they are needed instead of all at start.")
    streaming_buffer_size: int = flag(10000, help="Rows that a streaming data set keeps.", check=at_least(1))
    prefetch_chunk_size: int = flag(32, help="Rows that a streaming data set reads together.", check=at_least(1))
    prefetch_max_cached: int = flag(256, help="Rows that a streaming data set reads ahead.", check=at_least(1))
    prefetch_num_workers: int = flag(1, help="Threads that read ahead.", check=at_least(1))
    mm_processor_pool_size: int = flag(0, help="Processes that prepare media; 0 uses threads.", check=at_least(0))
    image_min_tokens: int | None = flag(
        None, help="Fewest tokens of an image.", check=at_least(1), shown="the saved processor's"
    )
    image_max_tokens: int | None = flag(
        None, help="Most tokens of an image.", check=at_least(1), shown="the saved processor's"
    )
    video_min_tokens: int | None = flag(
        None, help="Fewest tokens of a video frame.", check=at_least(1), shown="the saved processor's"
    )
    video_max_tokens: int | None = flag(
        None, help="Most tokens of a video frame.", check=at_least(1), shown="the saved processor's"
    )
    video_fps: float = flag(2.0, help="Frames taken from each second of a video.", check=above(0))
    video_min_frames: int = flag(4, help="Fewest frames of a video.", check=at_least(1))
    video_max_frames: int = flag(768, help="Most frames of a video.", check=at_least(1))
    audio_sample_rate: int | None = flag(
        None,
        help="Sample rate that audio is brought to, in Hz.",
        check=at_least(1),
        shown="the saved processor's, else 16000",
    )
