# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Generative prediction on held-out rows: the context of a row's last learned answer, and what the model makes of it.

The prompt is cut out of the tokens that training renders, so a prediction starts from the very ids that the loss sees
before the answer. Nothing is rendered or tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax.data.media.items import MediaItem, load_media
from relax.data.media.processing import MediaProcessor
from relax.engine.rollout.results import readable
from relax.engine.sft.dataset.examples import PreferenceExample, Refused, SftExample
from relax.utils.errors import DataError
from relax.utils.jsonl import dumps
from relax.utils.types import MODALITIES, MediaFeatures, Sample


@dataclass(frozen=True)
class AnswerPlace:
    """The last run of trained tokens of a row: [start, end) of its tokens."""

    start: int
    end: int


def last_answer(example: SftExample) -> AnswerPlace:
    trained = np.flatnonzero(example.loss_mask)
    if not len(trained):
        raise DataError(f"row {example.row} has no learned answer to predict")
    end = int(trained[-1]) + 1
    gaps = np.flatnonzero(np.diff(trained) > 1)
    start = int(trained[gaps[-1] + 1]) if len(gaps) else int(trained[0])
    return AnswerPlace(start, end)


def prediction_sample(
    example: SftExample, media: Sequence[MediaItem], *, tokenizer: Any, processor: MediaProcessor | None, group: int
) -> Sample:
    """The prompt as a `Sample`, its label the answer's text. `media` are the items of the whole row, in order."""
    place = last_answer(example)
    prompt = example.tokens[: place.start].tolist()
    before = _media_before(example, place.start, processor)
    sent = collapsed(prompt, example.media[:before], processor)
    items = list(media[:before])
    return Sample(
        group_index=group,
        row=example.row,
        prompt=tokenizer.decode(sent, skip_special_tokens=False),
        label=tokenizer.decode(example.tokens[place.start : place.end].tolist(), skip_special_tokens=True),
        tokens=prompt,
        rollout_tokens=sent,
        multimodal_inputs={kind: [i for i in items if i.kind == kind] for kind in MODALITIES if items} or None,
        multimodal_train_inputs=list(example.media[:before]) or None,
    )


def collapsed(tokens: Sequence[int], media: Sequence[MediaFeatures], processor: MediaProcessor | None) -> list[int]:
    """Ids with one placeholder a medium, as an engine takes them: the inverse of `MediaProcessor.expand`."""
    if not media or processor is None:
        return list(tokens)
    ids, cursor = [], 0
    for item in media:
        pad = processor.placeholder_ids[item.kind]
        whole = list(item.expansion) or [pad] * item.num_tokens
        while list(tokens[cursor : cursor + len(whole)]) != whole:
            if cursor >= len(tokens):
                raise DataError(f"the tokens of a {item.kind} are not in the prompt")
            ids.append(tokens[cursor])
            cursor += 1
        ids.append(pad)
        cursor += len(whole)
    return [*ids, *tokens[cursor:]]


def _media_before(example: SftExample, start: int, processor: MediaProcessor | None) -> int:
    """How many of the row's media stand before token `start`."""
    if not example.media or processor is None:
        return 0
    pads = list(processor.placeholder_ids.values())
    left = int(np.isin(example.tokens[:start], pads).sum())
    for number, item in enumerate(example.media):
        taken = len([i for i in item.expansion if i in pads]) or item.num_tokens
        if left < taken:
            return number
        left -= taken
    return len(example.media)


def row_media(examples: Any, row: int) -> list[MediaItem]:
    """The media of a row as items."""
    raw = examples.raw(row)
    sample = examples.sample(raw)
    return [load_media(kind, value, folder=raw.folder, where=raw.where) for kind, value in sample.media]


def usable(example: SftExample | PreferenceExample | Refused) -> SftExample | None:
    """The example to predict on; pairs are not, and refused rows are left out as in the evaluation."""
    return example if isinstance(example, SftExample) else None


def prediction_row(sample: Sample, dataset: str, rollout_id: int) -> dict[str, Any]:
    versions = [version for version in sample.weight_versions if version >= 0]
    return {
        "rollout_id": rollout_id,
        "dataset": dataset,
        "row": sample.row,
        "prompt": sample.prompt,
        "label": readable(sample.label),
        "prediction": sample.response,
        "finish_reason": sample.finish_reason,
        "status": sample.status.value,
        "prompt_tokens": sample.prompt_length,
        "response_tokens": sample.response_length,
        "weight_version": max(versions, default=None),
    }


def predictions_path(folder: Path, rollout_id: int) -> Path:
    return folder / "predict" / f"predictions_step_{rollout_id}.jsonl"


def write_predictions(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The file appears whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(dumps(row) + "\n" for row in rows), "utf-8")
    partial.replace(path)
