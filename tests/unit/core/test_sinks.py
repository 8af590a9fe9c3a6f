# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which trackers a run has, and under which names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relax.config.run import RunConfig, default_config
from relax.core.run_folder import RunFolder
from relax.core.sinks import clearml_project, tensorboard_folder, tracker_environment, trackers

KEYS = {"WANDB_API_KEY": "k", "CLEARML_API_ACCESS_KEY": "k"}


def settings(tmp_path: Path, environment: dict[str, str], **flags: Any) -> dict[str, dict[str, Any]]:
    nowhere = {"NETRC": str(tmp_path / "none"), "CLEARML_CONFIG_FILE": str(tmp_path / "none")}
    return trackers(default_config(**flags), RunFolder(tmp_path), nowhere | environment)


def test_nothing_leaves_the_machine_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert settings(tmp_path, KEYS) == {}


def test_both_trackers_get_the_names_of_the_run(tmp_path: Path) -> None:
    found = settings(
        tmp_path, KEYS, use_wandb=True, use_clearml=True, tb_project_name="vision/geometry", tb_experiment_name="lr-1",
        wandb_project="vision", wandb_team="team", wandb_group="lr",
    )  # fmt: skip
    wandb, clearml = found["wandb"], found["clearml"]
    assert (wandb["project"], wandb["name"], wandb["entity"], wandb["group"]) == ("vision", "lr-1", "team", "lr")
    assert (wandb["mode"], wandb["id_file"]) == ("online", str(tmp_path / "metrics" / "wandb_run_id"))
    assert (clearml["project"], clearml["name"], clearml["offline"]) == ("vision/geometry", "lr-1", False)
    assert wandb["config"]["rollout_batch_size"] == clearml["config"]["rollout_batch_size"] == 4


def test_without_keys_rows_are_kept_in_the_run_folder(tmp_path: Path) -> None:
    config = default_config(use_wandb=True, use_clearml=True, wandb_host="https://wandb.example.org")
    folder = RunFolder(tmp_path)
    found = settings(tmp_path, {}, use_wandb=True, use_clearml=True)
    assert (found["wandb"]["mode"], found["wandb"]["folder"]) == ("offline", str(tmp_path))
    assert tracker_environment("clearml", config, folder, found["clearml"]) == {
        "CLEARML_CACHE_DIR": str(tmp_path / "clearml")
    }
    assert tracker_environment("wandb", config, folder, found["wandb"]) == {
        "WANDB_BASE_URL": "https://wandb.example.org"
    }


def test_a_disabled_tracker_has_no_process(tmp_path: Path) -> None:
    assert settings(tmp_path, {"WANDB_MODE": "disabled"}, use_wandb=True) == {}
    assert settings(tmp_path, KEYS, use_wandb=True, wandb_mode="disabled") == {}


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ({}, "run/tensorboard/model-prompts"),
        ({"tb_project_name": "curves", "tb_experiment_name": "first"}, "curves/first"),
    ],
)
def test_event_files_lie_below_project_and_experiment(flags: dict[str, str], folder: str, tmp_path: Path) -> None:
    found = tensorboard_folder(default_config(**flags), RunFolder(tmp_path / "run"))
    assert found == (tmp_path / folder if not flags else Path(folder))


@pytest.mark.parametrize(
    ("config", "project"),
    [
        (default_config(), "relax"),
        (default_config(tb_project_name="/exp/vision/"), "exp/vision"),
        (default_config(tb_project_name="./runs"), "runs"),
    ],
)
def test_the_project_in_clearml_is_the_tensorboard_folder_of_the_user(config: RunConfig, project: str) -> None:
    assert clearml_project(config) == project
