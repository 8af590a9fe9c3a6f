# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The layout of a run's folder and what describes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from relax.backends.base import RankInfo
from relax.config.machine import Machine
from relax.config.run import default_config, parse_args
from relax.core.run_folder import (
    PACKAGES,
    RunFolder,
    add_facts,
    choose_folder,
    exactness,
    new_run_id,
    read_config,
    write_description,
)
from relax.utils.errors import ConfigError


def config(save: str | None = None, name: str | None = None):
    values = {"rollout_batch_size": 4, "lr": 0.001}
    return SimpleNamespace(
        checkpoint=SimpleNamespace(save=save),
        cluster=SimpleNamespace(run_name=name),
        values=lambda: values,
        external=SimpleNamespace(given=()),
        eval_datasets=(),
        custom={},
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


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
        ["--fully-async", "--max-staleness", "2", "--use-rollout-logprobs", "--lr", "3e-7"],
        ["--multimodal-keys", '{"image": "pictures"}', "--apply-chat-template"],
        ["--eval-prompt-data", "a", "a.jsonl", "b", "b.jsonl", "--eval-interval", "2"],
        ["--custom-config-path", "custom.yaml"],
    ],
    ids=lambda words: words[0] if words else "plain",
)
def test_the_configuration_comes_back_from_the_folder_as_it_was(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "custom.yaml").write_text("dice_turns: 2\nnested: {a: [1, 2.5]}\n")
    short = ["--hf-checkpoint", "m", "--prompt-data", "p.jsonl", "--rm-type", "math", "--rollout-batch-size", "4"]
    short += ["--n-samples-per-prompt", "2"]
    config = parse_args([*short, "--num-rollout", "3", *words], machine=Machine())
    write_description(RunFolder(tmp_path), config, "abc")
    add_facts(RunFolder(tmp_path), exact=True)
    (tmp_path / "custom.yaml").unlink()  # the folder alone is enough
    found = read_config(tmp_path)
    assert found.values() == config.values()
    for name in ("external", "eval_datasets", "custom", "origins"):
        assert getattr(found, name) == getattr(config, name), name
    assert found.flat() == config.flat()


def test_a_folder_that_no_run_has_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--run .*: there is no config.json; give a folder that `relax train`"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)
