# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows of the `sft` table: samples of one step, flat with offsets.

With S samples in the row, T tokens over them and R response tokens:

    tokens        int32  [T]      token_offsets  int64 [S+1]
    prompt_len    int32  [S]      loss_mask      uint8 [R]
    group, index, place  int64 [S]
    column/<name> float32 [R] or [R, K]   loss_weight and whatever else the loss reads
    media/<name>                          as in `relax.data.columns.media_columns`
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from relax.data.columns import TrainSequence, media_columns, media_from_columns, media_places, shared_media
from relax.utils.errors import InternalError

COLUMN, MEDIA = "column/", "media/"


def row_columns(samples: Sequence[TrainSequence]) -> dict[str, np.ndarray]:
    """The columns of one row."""
    names = sorted(samples[0].columns) if samples else []
    for sample in samples:
        if sorted(sample.columns) != names:
            raise InternalError(f"sample {sample.uid} has columns {sorted(sample.columns)}, others have {names}")
    columns = {
        "tokens": _joined([s.tokens for s in samples], np.int32),
        "token_offsets": np.cumsum([0, *(len(s.tokens) for s in samples)]).astype(np.int64),
        "prompt_len": np.asarray([s.prompt_len for s in samples], np.int32),
        "loss_mask": _joined([s.loss_mask for s in samples], np.uint8),
        "group": np.asarray([s.group for s in samples], np.int64),
        "index": np.asarray([s.index for s in samples], np.int64),
        "place": np.asarray([s.uid[1] for s in samples], np.int64),
    }
    columns |= {COLUMN + name: _joined([s.columns[name] for s in samples], np.float32) for name in names}
    items, places = shared_media([s.media for s in samples])
    if items:
        columns |= {MEDIA + name: value for name, value in media_columns(items, places).items()}
    return columns


def row_samples(columns: Mapping[str, np.ndarray]) -> list[TrainSequence]:
    """The samples that `row_columns` was given."""
    media = {name.removeprefix(MEDIA): value for name, value in columns.items() if name.startswith(MEDIA)}
    items, places = (media_from_columns(media), media_places(media)) if media else ([], [])
    own = {name.removeprefix(COLUMN): value for name, value in columns.items() if name.startswith(COLUMN)}
    samples, response = [], 0
    for number, (start, end) in enumerate(itertools.pairwise(columns["token_offsets"].tolist())):
        prompt_len = int(columns["prompt_len"][number])
        part = slice(response, response := response + end - start - prompt_len)
        samples.append(
            TrainSequence(
                group=int(columns["group"][number]),
                index=int(columns["index"][number]),
                tokens=columns["tokens"][start:end],
                prompt_len=prompt_len,
                loss_mask=columns["loss_mask"][part],
                columns={name: values[part] for name, values in own.items()},
                media=tuple(items[item] for item in places[number]) if places else tuple(items),
                place=int(columns["place"][number]),
            )
        )
    return samples


def unit_digest(samples: Sequence[TrainSequence]) -> str:
    """blake2b-64 over tokens, masks, columns and media of the samples of one unit."""
    content = hashlib.blake2b(digest_size=8)
    for sample in samples:
        content.update(f"{sample.uid} {sample.prompt_len};".encode())
        for array in (sample.tokens, sample.loss_mask):
            content.update(np.ascontiguousarray(array))
        for name in sorted(sample.columns):
            content.update(name.encode())
            content.update(np.ascontiguousarray(sample.columns[name]))
        for item in sample.media:
            content.update(f"{item.kind} {item.sha256} {item.num_tokens};".encode())
    return content.hexdigest()


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)
