# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Files that the configuration names: reading the YAML ones, and finding missing ones before anything starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.config.external.architecture import architecture_differences
from relax.config.flags import option_name
from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.config.run import RunConfig

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
TRACKER = "latest_checkpointed_iteration.txt"


def is_hub_name(text: str) -> bool:
    """`owner/model`, when no file of that name exists."""
    return bool(_HUB_NAME.match(text)) and not Path(text).exists()


def read_yaml(path: str, name: str) -> dict[str, Any]:
    """The mapping in a YAML file; `name` is the flag that names it."""
    import yaml

    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(missing_path(path, name, "a YAML file"))
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{option_name(name)} {path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{option_name(name)} {path} must hold `key: value` lines, got {type(content).__name__}")
    return content


def check_files(config: RunConfig) -> None:
    """Raise ConfigError with every named file or folder that is missing or unfit."""
    problems = [*_models(config), *_paths(config), *_output_folders(config)]
    if config.checkpoint.hf_checkpoint:
        problems += architecture_differences(config.external, Path(config.checkpoint.hf_checkpoint).expanduser())
    if problems:
        raise ConfigError("\n".join(problems))


def _models(config: RunConfig) -> Iterator[str]:
    for name in ("hf_checkpoint", "ref_load"):
        path = config.value(name)
        if path is None or is_hub_name(path) or (name == "ref_load" and path == config.checkpoint.hf_checkpoint):
            continue
        folder = Path(path).expanduser()
        if not folder.is_dir():
            yield missing_path(path, name, "a model folder (or a hub name of the form owner/model)")
        elif not (folder / "config.json").is_file() and not (folder / TRACKER).is_file():
            yield f"{option_name(name)} {path} holds no config.json: it is not a Hugging Face model folder"


def _paths(config: RunConfig) -> Iterator[str]:
    python = config.rollout.sglang_python
    if python is not None and not Path(python).expanduser().is_file():
        yield missing_path(python, "sglang_python", "a Python interpreter")
    template = config.data.chat_template
    if template is not None and not Path(template).expanduser().is_file():
        yield missing_path(template, "chat_template", "a file of a Jinja chat template")


def _output_folders(config: RunConfig) -> Iterator[str]:
    for name in ("save", "tb_project_name", "dump_details", "rollout_result_dir", "load", "wandb_dir"):
        path = config.value(name)
        if path and Path(path).expanduser().exists() and not Path(path).expanduser().is_dir():
            yield f"{option_name(name)} {path} must be a folder, and is a file"


def missing_path(path: str, name: str, kind: str) -> str:
    """`--flag path` does not exist, with the nearest name beside it."""
    parent = Path(path).expanduser().parent
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    near = difflib.get_close_matches(Path(path).name, names, n=1)
    hint = f"; {parent} has {near[0]!r}" if near else "" if names or parent.is_dir() else f"; {parent} does not exist"
    return f"{option_name(name)} {path} is not {kind}{hint}"
