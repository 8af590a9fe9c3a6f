# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The layout of a run's folder and what describes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from relax.backends.base import RankInfo
from relax.config.run import default_config
from relax.core.run_folder import (
    PACKAGES,
    RunFolder,
    add_facts,
    choose_folder,
    exactness,
    new_run_id,
    write_description,
)


def config(save: str | None = None, name: str | None = None):
    values = {"rollout_batch_size": 4, "lr": 0.001}
    return SimpleNamespace(
        checkpoint=SimpleNamespace(save=save),
        cluster=SimpleNamespace(run_name=name),
        values=lambda: values,
        origin=lambda key: {"lr": "default"}.get(key, "command line"),
    )


def test_save_is_the_run_folder(tmp_path: Path):
    folder = choose_folder(config(save=str(tmp_path / "here")), "abc")
    assert folder.root == tmp_path / "here"
    assert {path.name for path in folder.root.iterdir()} == {"journal", "trace", "metrics", "logs"}


def test_without_save_the_name_says_what_when_and_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    folder = choose_folder(config(name="digits"), "abc")
    assert folder.root.parent == tmp_path / "runs"
    assert re.fullmatch(r"digits-\d{8}T\d{6}Z-abc", folder.root.name)


def test_logs_are_told_apart_by_incarnation(tmp_path: Path):
    assert RunFolder(tmp_path).log("actor", 2) == tmp_path / "logs" / "actor-2.log"


def test_config_says_where_each_value_comes_from(tmp_path: Path):
    folder = RunFolder(tmp_path)
    write_description(folder, config(), "abc", exact=True)
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "lr": {"value": 0.001, "origin": "default"},
        "rollout_batch_size": {"value": 4, "origin": "command line"},
    }
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["run_id"], manifest["exact"]) == ("abc", True)
    assert set(manifest["versions"]) == set(PACKAGES)


def test_facts_of_a_started_run_join_the_manifest(tmp_path: Path):
    folder = RunFolder(tmp_path)
    write_description(folder, config(), "abc")
    add_facts(folder, exact=False, exact_reason="engine-1: another kernel")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["run_id"], manifest["exact"]) == ("abc", False)
    assert manifest["exact_reason"] == "engine-1: another kernel"


def rank(exact: bool, reason: str) -> RankInfo:
    return RankInfo(0, 1, 0, 1, "cpu", exact, reason, 10)


def test_a_run_is_exact_only_when_the_trainer_and_every_engine_are():
    good, bad = {"exact": True, "exact_reason": "agree"}, {"exact": False, "exact_reason": "sdpa"}
    run = default_config()
    assert exactness(run, rank(True, "agree"), {"engine-0": good, "engine-1": good}) == (True, "agree")
    assert exactness(run, rank(True, "agree"), {"engine-0": good, "engine-1": bad}) == (False, "engine-1: sdpa")
    assert exactness(run, rank(False, "differ"), {"engine-0": bad}) == (False, "trainer: differ; engine-0: sdpa")


def test_engines_of_another_dtype_are_not_exact_though_each_side_is():
    mixed = default_config(rollout_dtype="bf16", train_dtype="fp32")
    engine = {"engine-0": {"exact": True, "exact_reason": "agree"}}
    assert exactness(mixed, rank(True, "agree"), engine) == (False, "engines compute in bf16 and the trainer in fp32")


def test_run_ids_differ():
    assert len({new_run_id() for _ in range(100)}) == 100
