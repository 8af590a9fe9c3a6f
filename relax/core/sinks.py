# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where a run's metrics go, by its flags. Each has a thread of its own, so that none can hold up training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax.config.run import RunConfig
from relax.core.run_folder import RunFolder
from relax.utils.jsonl import plain
from relax.utils.metric_sinks import BackgroundSink, JsonlSink, TensorBoardSink
from relax.utils.metrics import Sink
from relax.utils.trackers.credentials import clearml_offline, wandb_mode
from relax.utils.trackers.process import CLOSE_TIMEOUT_S, TrackerProcess

PROJECT = "relax"


def make_sinks(config: RunConfig, folder: RunFolder, resumed_at: int | None) -> list[Sink]:
    """`resumed_at` is the first rollout of a resumed run."""
    sinks: list[Sink] = [BackgroundSink(JsonlSink(folder.metrics / "metrics.jsonl"), name="jsonl")]
    if config.logging.use_tensorboard:
        sink = TensorBoardSink(tensorboard_folder(config, folder), resumed_at)
        sinks.append(BackgroundSink(sink, name="tensorboard"))
    for kind, settings in trackers(config, folder, os.environ).items():
        process = TrackerProcess(
            kind, settings, log=folder.log(kind), environment=tracker_environment(kind, config, folder, settings)
        )
        sinks.append(
            BackgroundSink(
                process, name=kind, start=process.start, abandon=process.abandon, close_timeout_s=CLOSE_TIMEOUT_S
            )
        )
    return sinks


def tensorboard_folder(config: RunConfig, folder: RunFolder) -> Path:
    """--tb-project-name / --tb-experiment-name."""
    given = config.logging.tb_project_name
    root = Path(given).expanduser() if given else folder.tensorboard
    return root / (config.logging.tb_experiment_name or "")


def clearml_project(config: RunConfig) -> str:
    """The --tb-project-name of the user; a folder that follows from another flag is no name of a project."""
    given = config.logging.tb_project_name if config.origin("tb_project_name") == "flag" else None
    return (given or "").strip("./~") or PROJECT


def trackers(config: RunConfig, folder: RunFolder, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """{kind: settings of its process} of the trackers that are on."""
    found = {}
    section = config.logging
    if section.use_wandb and wandb_mode(section.wandb_mode, section.wandb_host, environment) != "disabled":
        found["wandb"] = wandb_settings(config, folder, environment)
    if section.use_clearml:
        found["clearml"] = {
            "project": clearml_project(config),
            "name": section.tb_experiment_name or "run",
            "id_file": str(folder.metrics / "clearml_task_id"),
            "offline": clearml_offline(environment),
            "config": plain(config.values()),
        }
    return found


def wandb_settings(config: RunConfig, folder: RunFolder, environment: Mapping[str, str]) -> dict[str, Any]:
    section = config.logging
    names = {
        "project": section.wandb_project or PROJECT,
        "name": section.tb_experiment_name,
        "entity": section.wandb_team,
        "group": section.wandb_group,
    }
    return {
        "folder": str(Path(section.wandb_dir).expanduser() if section.wandb_dir else folder.root),
        "id_file": str(folder.metrics / "wandb_run_id"),
        "run_id": section.wandb_run_id,
        "run_pid": os.getpid(),
        "mode": wandb_mode(section.wandb_mode, section.wandb_host, environment),
        "config": plain(config.values()),
        **{name: value for name, value in names.items() if value},
    }


def tracker_environment(
    kind: str, config: RunConfig, folder: RunFolder, settings: Mapping[str, Any]
) -> dict[str, str]:
    """Variables that a library reads where it has no argument."""
    if kind == "wandb":
        return {"WANDB_BASE_URL": config.logging.wandb_host} if config.logging.wandb_host else {}
    return {"CLEARML_CACHE_DIR": str(folder.root / "clearml")} if settings["offline"] else {}
