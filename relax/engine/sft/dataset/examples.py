# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows of a supervised data set as token sequences with a loss mask.

An example is a pure function of (options, row): whichever process asks, in whatever order, it gets the same arrays.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from relax.data.columns import TrainSequence
from relax.data.datasets import RawRow, open_dataset
from relax.data.media.items import load_media
from relax.data.media.processing import MediaProcessor
from relax.data.model_files import load_processor, load_tokenizer
from relax.engine.sft.dataset.chat_template import ChatRenderer
from relax.engine.sft.dataset.cpt import document_tokens
from relax.engine.sft.dataset.options import SftDataOptions
from relax.engine.sft.dataset.oversize import cut
from relax.engine.sft.dataset.rows import SampleReader
from relax.engine.sft.dataset.sample import CanonicalSample
from relax.engine.sft.dataset.split import split_rows
from relax.engine.sft.dataset.token_mask import masked_tokens
from relax.utils.errors import ConfigError, DataError, MediaError, UserCodeError
from relax.utils.imports import load_callable, load_object
from relax.utils.types import MediaFeatures

__all__ = [
    "ExampleSource",
    "PreferenceExample",
    "Refused",
    "SftDataOptions",
    "SftExample",
    "SftExamples",
    "open_examples",
    "split_rows",
    "to_sequences",
]

log = logging.getLogger(__name__)

OVERSIZE_FLAG = "--sft-oversize-custom-function-path"
DATASET_FLAG = "--custom-dataset-class-path"


@dataclass(frozen=True)
class SftExample:
    """One sequence of L tokens, media expanded. Nobody changes its arrays."""

    tokens: np.ndarray  # int32 [L]
    loss_mask: np.ndarray  # uint8 [L], 1 where the token is trained; the first token never is
    row: int
    media: tuple[MediaFeatures, ...] = ()
    label: int | tuple[int, ...] | None = None  # of a classification


@dataclass(frozen=True)
class PreferenceExample:
    """Two answers to one prompt."""

    chosen: SftExample
    rejected: SftExample
    row: int


@dataclass(frozen=True)
class Refused:
    """A row that the chosen strategies leave out, and why. Whoever asked counts it."""

    reason: Literal["oversize", "invalid_multimodal", "nothing_to_train"]
    row: int
    file: str
    detail: str = ""


Example = SftExample | PreferenceExample


class ExampleSource(Protocol):
    """What a producer takes; a class of `--custom-dataset-class-path` is one, made from SftDataOptions alone."""

    digest: str

    def __len__(self) -> int: ...

    def example(self, row: int) -> Example | Refused: ...


class SftExamples:
    """The rows of `options.files` as examples. Safe to call from threads.

    A subclass named by `--custom-dataset-class-path` usually overrides `sample`, which turns a raw row into messages.
    """

    def __init__(self, options: SftDataOptions) -> None:
        self.options = options
        self._tokenizer = load_tokenizer(options.model)
        processor = load_processor(options.model) if options.multimodal_keys else None
        self._media = MediaProcessor(processor, options.media, tokenizer=self._tokenizer)
        self._renderer = ChatRenderer(
            self._tokenizer,
            chat_template=options.chat_template,
            chat_template_kwargs=options.apply_chat_template_kwargs,
            model_template=getattr(processor, "chat_template", None),
        )
        self._reader = SampleReader(options)
        self._oversize = _oversize_function(options.oversize_custom_function_path)
        self._rows = open_dataset(
            options.files,
            streaming=True,
            buffer_rows=options.cached_rows,
            prefetch_workers=0,
            flag=options.files_flag,
        )
        self.digest = self._rows.digest

    def __len__(self) -> int:
        return len(self._rows)

    def raw(self, row: int) -> RawRow:
        return self._rows.row(row)

    def sample(self, raw: RawRow) -> CanonicalSample:
        """The messages of a raw row."""
        return self._reader.sample(raw)

    def example(self, row: int) -> Example | Refused:
        """The row's tokens and mask. Raises DataError, which names file and row, for a row that is wrong."""
        raw, mode = self.raw(row), self.options.training_mode
        file = raw.where.rpartition(":")[0]
        try:
            if mode == "cpt":
                return self._finished(row, raw.where, self._document(raw))
            if mode == "preference":
                return self._pair(row, raw)
            sample = self.sample(raw)
            return self._finished(row, raw.where, self._unfinished(sample), sample.label)
        except MediaError as error:
            if self.options.invalid_multimodal_strategy == "error":
                raise
            return Refused("invalid_multimodal", row, file, str(error))

    def close(self) -> None:
        self._rows.close()

    # ----------------------------------------------------------------- from sample to example

    def _pair(self, row: int, raw: RawRow) -> Example | Refused:
        sides = [self._finished(row, raw.where, self._unfinished(side)) for side in self._reader.pair(raw)]
        for side in sides:
            if isinstance(side, Refused):
                return side
        chosen, rejected = sides
        assert isinstance(chosen, SftExample) and isinstance(rejected, SftExample)
        return PreferenceExample(chosen, rejected, row)

    def _document(self, raw: RawRow) -> _Unfinished:
        text = self._reader.text(raw)
        ids, mask = document_tokens(self._tokenizer, text, self.options.cpt_template, where=raw.where)
        return _Unfinished(ids, mask, ())

    def _unfinished(self, sample: CanonicalSample) -> _Unfinished:
        if self.options.task_type == "seq_cls":
            ids, mask = masked_tokens(self._tokenizer, self._renderer.text(sample), ())
            return _Unfinished(ids, mask, ())
        if not sample.learned:
            raise DataError("no assistant message of the row is learned, so it trains nothing", where=sample.where)
        masked = self._renderer.masked(sample)
        return _Unfinished(masked.token_ids, masked.loss_mask, self._features(sample))

    def _features(self, sample: CanonicalSample) -> tuple[MediaFeatures, ...]:
        folder, where = Path(sample.file).parent, sample.where
        try:
            items = [load_media(kind, value, folder=folder, where=where) for kind, value in sample.media]
            return tuple(self._media.extract(item, where=where) for item in items)
        except DataError as error:
            raise _media_error(error) from error

    def _finished(
        self, row: int, where: str, parts: _Unfinished, label: int | tuple[int, ...] | None = None
    ) -> SftExample | Refused:
        """Media expanded, too many tokens dealt with by the strategy, the mask final."""
        limit, strategy = self.options.max_tokens, self.options.oversize_strategy
        file = where.rpartition(":")[0]
        costs = self._costs(parts, where)
        length = sum(costs)
        too_long = limit is not None and length > limit
        detail = f"{where}: {length} tokens, --max-tokens-per-gpu x --context-parallel-size is {limit}"
        if too_long and strategy == "skip":
            return Refused("oversize", row, file, detail)
        if too_long and strategy in ("truncate_left", "truncate_right"):
            parts, costs = self._cut(parts, costs, limit or 0, strategy)
        example = self._expanded(row, parts, costs, label)
        if too_long and strategy == "custom":
            answer = self._oversize_answer(example, where)
            if answer is None:
                return Refused("oversize", row, file, detail)
            example = answer
        if len(example.tokens) < 2 or not example.loss_mask.any():
            if too_long:
                return Refused("nothing_to_train", row, file, f"{detail}; after {strategy} nothing is left to train")
            raise DataError("the row has no token to train", where=where)
        return example

    def _costs(self, parts: _Unfinished, where: str) -> list[int]:
        if not self.options.multimodal_keys:
            return [1] * len(parts.ids)
        ids = parts.ids.tolist()
        try:
            self._media.expand(ids, parts.media)  # counts and kinds must agree before they are paired
        except DataError as error:
            raise MediaError(str(error), where=where) from error
        return self._media.spans(ids, parts.media)

    def _cut(self, parts: _Unfinished, costs: list[int], limit: int, side: str) -> tuple[_Unfinished, list[int]]:
        pads = list(self._media.placeholder_ids.values())
        window, media = cut(costs, np.isin(parts.ids, pads), limit, side)
        return _Unfinished(parts.ids[window], parts.mask[window], parts.media[media]), costs[window]

    def _expanded(
        self, row: int, parts: _Unfinished, costs: list[int], label: int | tuple[int, ...] | None
    ) -> SftExample:
        ids = self._media.expand(parts.ids.tolist(), parts.media) if parts.media else parts.ids
        mask = np.repeat(parts.mask, costs)
        if self.options.multimodal_keys:
            mask[np.repeat(np.isin(parts.ids, list(self._media.placeholder_ids.values())), costs)] = 0
        if self.options.task_type == "seq_cls":
            mask[:] = 0
            mask[-1:] = 1  # the class is read off the last token
        mask[:1] = 0  # nothing comes before it to predict it from
        return SftExample(np.asarray(ids, np.int32), mask, row, parts.media, label)

    def _oversize_answer(self, example: SftExample, where: str) -> SftExample | None:
        path, limit = self.options.oversize_custom_function_path, self.options.max_tokens
        assert path is not None and self._oversize is not None
        answer = self._oversize(example, limit)
        if answer is None:
            return None
        if not isinstance(answer, SftExample) or len(answer.tokens) != len(answer.loss_mask):
            raise UserCodeError(
                "must return an SftExample with one mask entry a token, or None", path=path, sample=where
            )
        if limit is not None and len(answer.tokens) > limit:
            raise UserCodeError(f"returned {len(answer.tokens)} tokens, {limit} are allowed", path=path, sample=where)
        return dataclasses.replace(answer, row=example.row)


@dataclass(frozen=True)
class _Unfinished:
    """Ids with media unexpanded, their mask, and the features of the media in order."""

    ids: np.ndarray
    mask: np.ndarray
    media: tuple[MediaFeatures, ...]


def open_examples(options: SftDataOptions, custom_class_path: str | None = None) -> ExampleSource:
    """The examples of a data set, by the class of `--custom-dataset-class-path` where one is named."""
    if custom_class_path is None:
        return SftExamples(options)
    made = load_object(custom_class_path, flag=DATASET_FLAG)(options)
    missing = [name for name in ("__len__", "digest", "example") if not hasattr(made, name)]
    if missing:
        raise ConfigError(
            f"{DATASET_FLAG}={custom_class_path!r} has no {', '.join(missing)}; derive the class from "
            "relax.engine.sft.dataset.examples.SftExamples"
        )
    return made


def to_sequences(example: Example, group: int) -> list[TrainSequence]:
    """The example as training sees it: one sequence, or the chosen (index 0) and the rejected (1) one of a pair.

    What stands before the first trained token is the prompt, which is never empty.
    """
    if isinstance(example, PreferenceExample):
        sides = (example.chosen, example.rejected)
        return [dataclasses.replace(_sequence(side, group), index=place) for place, side in enumerate(sides)]
    return [_sequence(example, group)]


def _sequence(example: SftExample, group: int) -> TrainSequence:
    trained = np.flatnonzero(example.loss_mask)
    start = max(1, int(trained[0])) if len(trained) else len(example.tokens)
    return TrainSequence(
        group=group,
        index=0,
        tokens=example.tokens,
        prompt_len=start,
        loss_mask=example.loss_mask[start:],
        media=example.media,
    )


def _media_error(error: DataError) -> MediaError:
    """The same message, as one that `--sft-invalid-multimodal-strategy` decides about."""
    found = MediaError(str(error))
    found.where = error.where
    return found


def _oversize_function(path: str | None) -> Callable[[SftExample, int | None], SftExample | None] | None:
    return load_callable(path, flag=OVERSIZE_FLAG, positional=("example", "max_tokens")) if path else None
