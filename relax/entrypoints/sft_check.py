# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Looks at the rows of supervised fine-tuning before anything starts, without tokenizer and torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.config.files import is_hub_name
from relax.config.run import RunConfig
from relax.core.sft_build import data_options
from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.data.datasets import FileRows, RawRow
    from relax.engine.sft.dataset.options import SftDataOptions
    from relax.engine.sft.dataset.rows import SampleReader


def check_supervised_data(config: RunConfig, rows: FileRows, problems: list[str]) -> list[str]:
    """Raise for a missing template, for too few rows, or with file and row for the first bad row -> notes."""
    from relax.data.datasets import FileRows

    problems = [*problems, *_template(config)]
    if problems:
        raise ConfigError("\n".join(problems))
    config.num_rollouts(len(rows))  # raises where the rows make no step
    notes: list[str] = []
    if config.sft.custom_dataset_class_path is not None:  # its rows are its own business
        return notes
    spec = str(config.data.prompt_data)
    notes += _rows(rows, f"--prompt-data {spec}", data_options(config, spec))
    for dataset in config.eval_datasets:
        others = FileRows(dataset.path, flag="--eval-prompt-data")
        keys = {"input_key": dataset.input_key, "label_key": dataset.label_key, "tool_key": dataset.tool_key}
        try:
            options = data_options(config, dataset.path, "--eval-prompt-data", **keys)
            notes += _rows(others, f"--eval-prompt-data {dataset.path}", options)
        finally:
            others.close()
    return notes


def _template(config: RunConfig) -> Iterator[str]:
    from relax.data.model_files import has_chat_template

    name, data = config.checkpoint.hf_checkpoint or "", config.data
    given = data.chat_template or "chat_template" in data.apply_chat_template_kwargs
    if config.sft.sft_training_mode == "cpt" and config.sft.sft_cpt_template == "raw":
        return
    if given or is_hub_name(name) or has_chat_template(Path(name).expanduser()):
        return
    yield (
        f"--hf-checkpoint {name} has no chat template, which --loss-type sft renders rows with: name one by "
        "--chat-template FILE, or put a chat_template.jinja into the folder"
    )


def _read(reader: SampleReader, row: RawRow, options: SftDataOptions) -> list[tuple[str, Any]]:
    """The row's media as (kind, value), unread. Raises DataError for a row that training would refuse."""
    if options.training_mode == "cpt":
        reader.text(row)
        return []
    samples = reader.pair(row) if options.training_mode == "preference" else (reader.sample(row),)
    return list(samples[0].media)


def _rows(rows: FileRows, name: str, options: SftDataOptions) -> Iterator[str]:
    from relax.engine.sft.dataset.rows import SampleReader
    from relax.entrypoints.preflight import BYTES_CHECKED, MEDIA_READ, ROWS_CHECKED, check_media

    reader, size, number = SampleReader(options), 0, 0
    lenient = options.invalid_multimodal_strategy == "skip"
    for number in range(min(len(rows), ROWS_CHECKED)):
        row, nbytes = rows.read(number)
        media = _read(reader, row, options)
        if not lenient:
            check_media(media, row, read=number < MEDIA_READ)
        size += nbytes
        if size > BYTES_CHECKED:
            break
    if number + 1 < len(rows):
        yield f"{name}: the first {number + 1} of {len(rows)} rows were checked, the others when they are used"
