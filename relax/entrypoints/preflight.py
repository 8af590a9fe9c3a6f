# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Looks at the data before anything starts: files exist, and the first row has the columns that the flags name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from relax.config.flags import nearest, option_name
from relax.config.run import RunConfig
from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.config.evaluation import EvalDataset


def first_row(spec: str, flag: str = "--prompt-data") -> Mapping[str, Any]:
    """Columns of the first row of a data specification. Raises ConfigError for a missing file or an empty one."""
    from relax.data.datasets import FileRows

    rows = FileRows(spec, flag=flag)
    try:
        if len(rows) == 0:
            raise ConfigError(f"{flag} {spec} has no rows")
        return rows.read(0)[0].values
    finally:
        rows.close()


def count_rows(config: RunConfig) -> int:
    """Rows of --prompt-data, before any filter."""
    from relax.data.datasets import FileRows

    assert config.data.prompt_data is not None
    rows = FileRows(config.data.prompt_data)
    try:
        return len(rows)
    finally:
        rows.close()


def check_data(config: RunConfig) -> None:
    """Raise ConfigError when data is missing or its first row does not fit the flags."""
    assert config.data.prompt_data is not None
    row = first_row(config.data.prompt_data)
    problems = [*_columns(config, row), *_reward(config, row)]
    for dataset in config.eval_datasets:
        problems += _eval_columns(dataset, first_row(dataset.path, f"evaluation data set {dataset.name}:"))
    if problems:
        raise ConfigError("\n".join(problems))


def _columns(config: RunConfig, row: Mapping[str, Any]) -> Iterator[str]:
    data = config.data
    wanted = {"input_key": data.input_key, "label_key": data.label_key}
    for name, column in wanted.items():
        if column is not None and column not in row:
            yield f"{option_name(name)} {column}: {_has(config.data.prompt_data, row, column)}"
    for kind, column in (data.multimodal_keys or {}).items():
        if column not in row:
            yield f"--multimodal-keys {kind}: {_has(config.data.prompt_data, row, column)}"
    prompt = row.get(data.input_key)
    if isinstance(prompt, list) and not data.apply_chat_template:
        yield (
            f"column {data.input_key!r} holds a list of messages, which needs a chat template to become text: "
            "add --apply-chat-template"
        )


def _eval_columns(dataset: EvalDataset, row: Mapping[str, Any]) -> Iterator[str]:
    for name, column in (("input_key", dataset.input_key), ("label_key", dataset.label_key)):
        if column is not None and column not in row:
            yield f"evaluation data set {dataset.name}, {name} {column}: {_has(dataset.path, row, column)}"


def _has(spec: str | None, row: Mapping[str, Any], column: str) -> str:
    near = nearest(column, row)
    return f"{spec} has the columns {', '.join(row)}{f'; did you mean {near}?' if near else ''}"


def _reward(config: RunConfig, row: Mapping[str, Any]) -> Iterator[str]:
    """Unknown reward names; and a run whose rows, flags and hooks name no reward would stop at its first sample."""
    reward = config.reward
    yield from _known_reward("--rm-type", reward.rm_type)
    for dataset in config.eval_datasets:
        if dataset.rm_type != reward.rm_type:
            yield from _known_reward(f"evaluation data set {dataset.name}: rm_type", dataset.rm_type)
    named = reward.rm_type or reward.custom_rm_path or config.rollout.custom_generate_function_path
    if not named and not _row_reward(row.get(config.data.metadata_key)):
        yield "no reward is named: add --rm-type, --custom-rm-path, or an rm_type to each row's metadata"


def _known_reward(where: str, name: str | None) -> Iterator[str]:
    from relax.engine.rewards.builtin import is_known, known_names

    if name is not None and not is_known(name):
        near = nearest(name, known_names())
        hint = f"did you mean {near}?" if near else f"built-in are {', '.join(known_names())}"
        yield f"{where} {name} is no built-in reward: {hint}"


def _row_reward(metadata: Any) -> str | None:
    """The rm_type of a row's metadata, which may be JSON text."""
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except json.JSONDecodeError:  # the data source reports rows whose metadata it cannot use
            return None
    return metadata.get("rm_type") if isinstance(metadata, Mapping) else None
