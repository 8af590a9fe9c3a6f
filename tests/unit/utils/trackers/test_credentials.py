# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Online where a key is found, kept on the disk where none is."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax.utils.trackers.credentials import clearml_offline, wandb_mode

NETRC = "machine api.wandb.ai login user password k\n"


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        (None, {}, "offline"),
        (None, {"WANDB_API_KEY": "k"}, "online"),
        (None, {"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "offline"),
        ("online", {"WANDB_MODE": "offline"}, "online"),
        ("disabled", {"WANDB_API_KEY": "k"}, "disabled"),
        (None, {"NETRC": "there"}, "online"),
        (None, {"NETRC": "there", "WANDB_BASE_URL": "https://wandb.example.org"}, "offline"),
    ],
)
def test_the_mode_of_weights_and_biases(given, variables: dict[str, str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text(NETRC)
    environment = {"NETRC": str(tmp_path / variables.get("NETRC", "missing"))}
    assert wandb_mode(given, None, variables | environment) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"CLEARML_API_ACCESS_KEY": "k"}, False),
        ({"CLEARML_API_ACCESS_KEY": "k", "CLEARML_OFFLINE_MODE": "1"}, True),
        ({"CLEARML_OFFLINE_MODE": "0"}, False),
    ],
)
def test_whether_clearml_keeps_its_rows(variables: dict[str, str], expected: bool, tmp_path: Path) -> None:
    assert clearml_offline({"CLEARML_CONFIG_FILE": str(tmp_path / "missing"), **variables}) is expected
