# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Metrics trackers before the start: is the package there, and will rows be sent or kept?"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping

from relax.config.run import RunConfig
from relax.utils.trackers.credentials import clearml_offline, wandb_mode

REMEDY = "pip install -e '.[{package}]', or leave the flag out"


def tracker_problems(config: RunConfig, has: Callable[[str], bool]) -> Iterator[str]:
    """Packages that are not installed; `has` says whether one is."""
    for package in ("wandb", "clearml"):
        if config.value(f"use_{package}") and not has(package):
            yield f"--use-{package} needs the package {package}: {REMEDY.format(package=package)}"


def tracker_notes(config: RunConfig, environment: Mapping[str, str]) -> Iterator[str]:
    """Rows that stay on this machine."""
    section = config.logging
    if section.use_wandb and section.wandb_mode is None:
        mode = wandb_mode(None, section.wandb_host, environment)
        if mode == "offline" and "WANDB_MODE" not in environment:
            yield (
                "Weights & Biases: no key in WANDB_API_KEY or ~/.netrc, so rows are kept in the folder wandb of the "
                "run; send them by `wandb sync`, or run `wandb login` first"
            )
        if mode == "disabled":
            yield "--use-wandb has no effect: WANDB_MODE is disabled"
    if section.use_clearml and clearml_offline(environment) and "CLEARML_OFFLINE_MODE" not in environment:
        yield (
            "ClearML: no keys in CLEARML_API_ACCESS_KEY or ~/clearml.conf, so the task is kept as a zip file in the "
            "folder clearml of the run; send it by Task.import_offline_session, or run `clearml-init` first"
        )


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
