# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Evaluation data sets: from `--eval-prompt-data` pairs or the YAML file of `--eval-config`.

eval:
  defaults: {n_samples_per_eval_prompt: 4, top_p: 0.7}
  datasets:
    - {name: aime, path: /data/aime.jsonl, rm_type: math}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from relax.config.files import read_yaml
from relax.config.flags import Kind, nearest
from relax.config.frozen import FrozenDict, freeze
from relax.utils.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EvalDataset:
    """One evaluation data set with every setting resolved."""

    name: str
    path: str
    input_key: str
    label_key: str | None
    tool_key: str
    metadata_key: str
    temperature: float
    top_p: float
    top_k: int
    max_response_len: int
    min_new_tokens: int
    n_samples_per_eval_prompt: int
    rm_type: str | None
    custom_generate_function_path: str | None
    metadata_overrides: FrozenDict


# {setting of a data set: flag that it is taken from when the file does not say}
SOURCES: Mapping[str, str] = {
    "input_key": "eval_input_key",
    "label_key": "eval_label_key",
    "tool_key": "eval_tool_key",
    "metadata_key": "metadata_key",
    "temperature": "eval_temperature",
    "top_p": "eval_top_p",
    "top_k": "eval_top_k",
    "max_response_len": "eval_max_response_len",
    "min_new_tokens": "eval_min_new_tokens",
    "n_samples_per_eval_prompt": "n_samples_per_eval_prompt",
    "rm_type": "rm_type",
    "custom_generate_function_path": "eval_generate_function_path",
}
KEYS = (*SOURCES, "name", "path", "metadata_overrides")


def eval_datasets(values: Mapping[str, Any]) -> tuple[EvalDataset, ...]:
    """The data sets that the flags in `values` describe; names are unique."""
    if values["eval_config"]:
        if values["eval_prompt_data"]:
            raise ConfigError("--eval-config and --eval-prompt-data are both given: keep one")
        entries = _from_file(values["eval_config"])
    else:
        entries = _from_pairs(values["eval_prompt_data"])
    datasets = tuple(_dataset(entry, values) for entry in entries)
    names = [dataset.name for dataset in datasets]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"evaluation data sets need different names, {', '.join(twice)} is there twice")
    return datasets


def _from_pairs(words: Iterable[str]) -> list[dict[str, Any]]:
    """`name path name path ...`; a single path is named after its file."""
    words = list(words)
    if len(words) == 1:
        return [{"name": Path(words[0].split("@[")[0]).stem, "path": words[0]}]
    if len(words) % 2:
        raise ConfigError(
            f"--eval-prompt-data takes pairs of a name and a path, got {len(words)} words: {' '.join(words)}"
        )
    return [{"name": name, "path": path} for name, path in zip(words[::2], words[1::2], strict=True)]


def _from_file(path: str) -> list[dict[str, Any]]:
    content = read_yaml(path, "eval_config")
    body = content.get("eval", content)
    _known(body, ("defaults", "datasets"), f"--eval-config {path}")
    entries, defaults = body.get("datasets") or [], body.get("defaults") or {}
    _known(defaults, KEYS, f"--eval-config {path}, defaults")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"--eval-config {path} must list data sets under eval: datasets:")
    for place, entry in enumerate(entries):
        _known(entry, KEYS, f"--eval-config {path}, data set {place}")
        if not entry.get("name") or not entry.get("path"):
            raise ConfigError(f"--eval-config {path}, data set {place} needs name and path, has {sorted(entry)}")
    return [defaults | entry for entry in entries]


def _known(mapping: Any, keys: Iterable[str], where: str) -> None:
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where} must hold `key: value` lines, got {mapping!r}")
    for key in mapping:
        if key not in keys:
            near = nearest(str(key), keys)
            raise ConfigError(f"{where}: unknown key {key!r}{f', did you mean {near!r}?' if near else ''}")


def _dataset(entry: Mapping[str, Any], values: Mapping[str, Any]) -> EvalDataset:
    settings = {key: entry.get(key, values[flag]) for key, flag in SOURCES.items()}
    overrides = freeze(entry.get("metadata_overrides") or {})
    dataset = EvalDataset(name=entry["name"], path=entry["path"], metadata_overrides=overrides, **settings)
    _check(dataset)
    return dataset


def _check(dataset: EvalDataset) -> None:
    hints = get_type_hints(EvalDataset)
    kinds = {name: Kind.of(hint) for name, hint in hints.items()}
    for name, kind in kinds.items():
        if not kind.accepts(getattr(dataset, name)):
            raise ConfigError(
                f"evaluation data set {dataset.name}: {name} must be {kind}, got {getattr(dataset, name)!r}"
            )
    rules = {
        "temperature": dataset.temperature >= 0,
        "top_p": 0 < dataset.top_p <= 1,
        "top_k": dataset.top_k == -1 or dataset.top_k > 0,
        "max_response_len": dataset.max_response_len >= 1,
        "n_samples_per_eval_prompt": dataset.n_samples_per_eval_prompt >= 1,
    }
    for name, holds in rules.items():
        if not holds:
            raise ConfigError(f"evaluation data set {dataset.name}: {name} {getattr(dataset, name)!r} is out of range")
