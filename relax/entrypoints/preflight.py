# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Looks at everything that a run needs before anything starts: data, model, checkpoint, machine.

Of the data, the first `ROWS_CHECKED` rows are read: each is an object with the columns that the flags name, messages
are well formed, and media are as many as placeholders. The media of the first `MEDIA_READ` rows are decoded, of the
others local files must exist. Rows behind them are checked when they are used, with the same messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.config.columns import LABEL_COLUMNS, PROMPT_COLUMNS
from relax.config.flags import nearest, option_name
from relax.config.run import RunConfig
from relax.core.critic_files import check_critic_files
from relax.entrypoints.machine_check import machine_notes, machine_problems
from relax.entrypoints.model_check import checkpoint_notes, checkpoint_problems, model_problems
from relax.entrypoints.served_check import judge_problems, teacher_problems
from relax.entrypoints.tracker_check import installed, tracker_notes, tracker_problems
from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.config.evaluation import EvalDataset
    from relax.config.sections import DataConfig
    from relax.data.datasets import FileRows, RawRow

ROWS_CHECKED = 5000
BYTES_CHECKED = 64 << 20  # rows behind these bytes are not checked either
MEDIA_READ = 4  # rows
LIKELY = {"input_key": PROMPT_COLUMNS, "label_key": LABEL_COLUMNS}
WITHOUT_LABEL = ("remote_rm", "random", "dummy")  # rewards that compare with nothing


@dataclass(frozen=True)
class Findings:
    """What a look at everything has shown, when nothing stops the run."""

    rows: int  # of --prompt-data, before any filter
    notes: tuple[str, ...]


def preflight(config: RunConfig) -> Findings:
    """Raise ConfigError or DataError for what would stop the run."""
    from relax.data.datasets import FileRows

    assert config.data.prompt_data is not None
    rows = FileRows(config.data.prompt_data)
    try:
        if config.is_supervised:
            from relax.entrypoints.sft_check import check_supervised_data as check
        else:
            check = check_data
        notes = check(config, rows, [*model_problems(config)])
        problems = [*checkpoint_problems(config, rows.digest)]
        check_critic_files(config)
        problems += [*teacher_problems(config), *judge_problems(config)]
        now = [*machine_problems(config), *tracker_problems(config, installed)]
        if config.cluster.dry_run:  # a dry run may describe a run of later, or of another machine
            notes += [f"would not start now: {problem}" for problem in now]
        else:
            problems += now
        if problems:
            raise ConfigError("\n".join(problems))
        notes += [*left_over(config, len(rows)), *checkpoint_notes(config), *machine_notes(config, len(rows))]
        return Findings(len(rows), (*notes, *tracker_notes(config, os.environ)))
    finally:
        rows.close()


def left_over(config: RunConfig, rows: int) -> Iterator[str]:
    """Prompts that --num-epoch leaves over, because rounds are whole."""
    epochs, batch = config.rollout.num_epoch, config.prompts_per_rollout
    if epochs is None:
        return
    rows -= config.eval_rows(rows)
    rounds, left = divmod(epochs * rows, batch)
    if left and (config.rollout.num_rollout or rounds) >= rounds:  # else --num-rollout ends the run before
        yield (
            f"--num-epoch {epochs} of {rows} prompts is {rounds} rounds of {batch}: the last {left} prompts are not "
            "trained"
        )


def first_row(spec: str, flag: str = "--prompt-data") -> Mapping[str, Any]:
    """Columns of the first row of a data specification. Raises ConfigError for a missing file or an empty one."""
    from relax.data.datasets import FileRows

    rows = FileRows(spec, flag=flag)
    try:
        return _first(rows, spec, flag)
    finally:
        rows.close()


def _first(rows: FileRows, spec: str, flag: str) -> Mapping[str, Any]:
    if len(rows) == 0:
        raise ConfigError(f"{flag} {spec} has no rows")
    return rows.read(0)[0].values


def check_data(config: RunConfig, rows: FileRows, problems: list[str]) -> list[str]:
    """Raise when data is missing or does not fit the flags; `problems` found before are told with it -> notes."""
    from relax.data.datasets import FileRows

    data = config.data
    row = _first(rows, data.prompt_data or "", "--prompt-data")
    problems = [*problems, *_columns(config, row), *_reward(config, row)]
    names = {dataset: f"evaluation data set {dataset.name}:" for dataset in config.eval_datasets}
    for dataset, flag in names.items():
        problems += _eval_columns(dataset, first_row(dataset.path, flag))
    if problems:
        raise ConfigError("\n".join(problems))
    notes = [*check_rows(rows, f"--prompt-data {data.prompt_data}", config, data)]
    for dataset, flag in names.items():
        others = FileRows(dataset.path, flag=flag)
        try:
            notes += check_rows(others, f"{flag} {dataset.path}", config, dataset)
        finally:
            others.close()
    return notes


def check_rows(rows: FileRows, name: str, config: RunConfig, keys: DataConfig | EvalDataset) -> Iterator[str]:
    """Raise DataError, with file and row, for the first bad row; yield a note when some were not looked at."""
    from relax.data.chat import PromptBuilder

    builder = PromptBuilder(
        None,
        input_key=keys.input_key,
        label_key=keys.label_key,
        metadata_key=keys.metadata_key,
        tool_key=keys.tool_key,
        multimodal_keys=config.data.multimodal_keys,
        apply_chat_template=config.data.apply_chat_template,
    )
    number, size = 0, 0
    for number in range(min(len(rows), ROWS_CHECKED)):
        row, nbytes = rows.read(number)
        if config.data.custom_prompt_path is None:  # a function may change the prompt, and is not run here
            check_media(builder.check(row), row, read=number < MEDIA_READ)
        size += nbytes
        if size > BYTES_CHECKED:
            break
    if number + 1 < len(rows):
        yield f"{name}: the first {number + 1} of {len(rows)} rows were checked, the others when they are used"


def check_media(media: list[tuple[str, Any]], row: RawRow, *, read: bool) -> None:
    """Raise DataError for a medium that cannot be read. Nothing is fetched over the network."""
    from relax.data.media.items import load_media

    for kind, value in media:
        if is_remote(value):
            continue
        missing = isinstance(value, str) and Path(value).suffix != "" and not _exists(row.folder / value)
        if read or missing:
            load_media(kind, value, folder=row.folder, where=row.where)


def is_remote(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(is_remote(item) for item in value.values() if isinstance(item, str))
    return isinstance(value, str) and value[:8].lower().startswith(("http://", "https://"))


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().is_file()
    except (OSError, ValueError):  # no file can have such a name: base64, for example
        return True


def _columns(config: RunConfig, row: Mapping[str, Any]) -> Iterator[str]:
    data = config.data
    wanted = {"input_key": data.input_key, "label_key": data.label_key}
    for name, column in wanted.items():
        if column is not None and column not in row:
            yield f"{option_name(name)} {column}: {_has(config.data.prompt_data, row, column, LIKELY[name])}"
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


def _has(spec: str | None, row: Mapping[str, Any], column: str, likely: Sequence[str] = ()) -> str:
    near = nearest(column, row) or next((name for name in likely if name in row), None)
    return f"{spec} has the columns {', '.join(row)}{f'; did you mean {near}?' if near else ''}"


def _reward(config: RunConfig, row: Mapping[str, Any]) -> Iterator[str]:
    """Unknown reward names; and a run whose rows, flags and hooks name no reward would stop at its first sample."""
    from relax.engine.rewards.infer import ZERO, inferred_name

    reward = config.reward
    yield from _known_reward("--rm-type", reward.rm_type)
    for dataset in config.eval_datasets:
        if dataset.rm_type != reward.rm_type:
            yield from _known_reward(f"evaluation data set {dataset.name}: rm_type", dataset.rm_type)
    own = reward.custom_rm_path or config.rollout.custom_generate_function_path
    if reward.rm_type not in (None, *WITHOUT_LABEL) and not own and config.data.label_key is None:
        has = _has(config.data.prompt_data, row, "label", LABEL_COLUMNS)
        yield f"--rm-type {reward.rm_type} compares with a label: add --label-key; {has}"
    if reward.rm_type_fallback != ZERO:
        yield from _known_reward("--rm-type-fallback", reward.rm_type_fallback)
    if reward.rm_type or own or reward.rm_type_fallback or _row_reward(row.get(config.data.metadata_key)):
        return
    if not reward.rm_type_infer:
        yield "no reward is named: add --rm-type, --custom-rm-path, or an rm_type to each row's metadata"
        return
    label = row.get(config.data.label_key) if config.data.label_key else None
    if inferred_name(label) is None:
        yield (
            f"--rm-type-infer tells no reward from the first label {label!r:.60}: it knows numbers and "
            "<answer>B</answer>; add --rm-type, or --rm-type-fallback"
        )


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
