# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What is said about trackers before the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax.config.run import default_config
from relax.entrypoints.tracker_check import tracker_notes, tracker_problems


def test_a_missing_package_stops_the_run_with_its_remedy() -> None:
    config = default_config(use_wandb=True, use_clearml=True)
    problems = list(tracker_problems(config, lambda package: package == "clearml"))
    assert problems == ["--use-wandb needs the package wandb: pip install -e '.[wandb]', or leave the flag out"]
    assert list(tracker_problems(default_config(), lambda package: False)) == []


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        ({}, ["Weights & Biases: no key in WANDB_API_KEY", "ClearML: no keys in CLEARML_API_ACCESS_KEY"]),
        ({"WANDB_API_KEY": "k", "CLEARML_API_ACCESS_KEY": "k"}, []),
        ({"WANDB_MODE": "offline", "CLEARML_OFFLINE_MODE": "1"}, []),
        (
            {"WANDB_MODE": "disabled", "CLEARML_OFFLINE_MODE": "0"},
            ["--use-wandb has no effect: WANDB_MODE is disabled"],
        ),
    ],
)
def test_rows_that_stay_here_are_told(variables: dict[str, str], texts: list[str], tmp_path: Path) -> None:
    nowhere = {"NETRC": str(tmp_path / "none"), "CLEARML_CONFIG_FILE": str(tmp_path / "none")}
    notes = list(tracker_notes(default_config(use_wandb=True, use_clearml=True), nowhere | variables))
    assert len(notes) == len(texts)
    for note, text in zip(notes, texts, strict=True):
        assert text in note
