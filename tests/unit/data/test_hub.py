# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Names of the Hugging Face Hub become folders and files; what cannot be found is told within seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relax.data.datasets import FileRows
from relax.data.hub import Hub, choose_files, names_a_dataset, names_a_model
from relax.utils.errors import ConfigError, InfrastructureError
from tests.unit.data.hub_server import HubServer, serving

ROW = {"prompt": "1 + 2 = ", "label": "3"}
LINES = (json.dumps(ROW) + "\n").encode() * 4
MODEL = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"old"}
REPOSITORIES = {
    ("dataset", "owner/sums"): {"README.md": b"", "data/train.jsonl": LINES, "data/test.jsonl": b"{}\n"},
    ("model", "owner/small"): MODEL,
    ("model", "owner/adapter"): {"config.json": b"{}"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[HubServer]:
    with serving(REPOSITORIES) as found:
        yield found


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.chdir(tmp_path)
    server.fetched.clear()
    return Hub(server.url, tmp_path / "cache")


def test_a_data_set_is_its_training_rows(hub: Hub, server: HubServer) -> None:
    rows = FileRows(hub.dataset("owner/sums@[1:3]"))
    assert [rows.read(number)[0].values for number in range(len(rows))] == [ROW, ROW]
    assert server.fetched == ["data/train.jsonl"]
    rows.close()


def test_a_model_comes_in_two_parts_and_the_weights_last(hub: Hub, server: HubServer) -> None:
    folder = hub.model("owner/small")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "tokenizer.json"]
    assert hub.weights("owner/small") == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert "pytorch_model.bin" not in server.fetched


def test_a_path_that_is_there_is_never_looked_up(hub: Hub, server: HubServer) -> None:
    Path("owner/sums").mkdir(parents=True)
    assert not names_a_dataset("owner/sums")
    assert not names_a_model("owner/sums")
    assert not names_a_dataset("data/train.jsonl")
    assert hub.dataset("./data/multimodal_dataset") == "./data/multimodal_dataset"
    assert server.fetched == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "owner/smal",
            "owner/smal is neither a folder here nor a model of the Hugging Face Hub: did you mean owner/small?",
        ),
        ("Qwen/Qwen3-Omni-30B", "did you mean Qwen/Qwen3-Omni-30B-A3B-Instruct?"),  # C11
        ("owner/adapter", "owner/adapter has no weights (*.safetensors)"),
    ],
)
def test_a_model_that_is_not_there_is_told_with_a_near_name(name: str, text: str, hub: Hub) -> None:
    with pytest.raises(ConfigError) as caught:
        hub.model(name)
    assert text in str(caught.value)
    assert "hf download" in str(caught.value) or "no weights" in text


def test_a_misspelled_path_is_told_with_the_one_that_is_there(hub: Hub) -> None:
    Path("owner/multimodal").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"owner/multimodel is neither .* did you mean owner/multimodal\?"):
        hub.dataset("owner/multimodel")


def test_without_a_network_the_cache_answers(hub: Hub, tmp_path: Path) -> None:
    spec = hub.dataset("owner/sums")
    dead = Hub("http://127.0.0.1:9", tmp_path / "cache")
    assert dead.dataset("owner/sums") == spec


def test_without_network_and_cache_the_error_comes_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"did you mean Qwen/Qwen3-Omni-30B-A3B-Instruct\?") as caught:
        Hub("http://127.0.0.1:9", tmp_path / "cache").model("Qwen/Qwen3-Omni-30B")
    assert "The hub cannot be asked" in str(caught.value)
    assert time.monotonic() - began < 20.0


FILES = ("README.md", "main/train-0.parquet", "main/test-0.parquet", "socratic/train-0.parquet")


@pytest.mark.parametrize(
    ("files", "inside", "chosen"),
    [
        (("rows.jsonl",), None, ["rows.jsonl"]),
        (("train-1.parquet", "train-0.parquet", "validation-0.parquet"), None, ["train-0.parquet", "train-1.parquet"]),
        (("a.jsonl", "b.jsonl", "training_notes.jsonl"), None, ["a.jsonl", "b.jsonl", "training_notes.jsonl"]),
        (FILES, "main", ["main/train-0.parquet"]),
        (FILES, "main/test-0.parquet", ["main/test-0.parquet"]),
    ],
)
def test_which_files_are_taken(files: tuple[str, ...], inside: str | None, chosen: list[str]) -> None:
    assert choose_files("o/n", files, inside) == chosen


@pytest.mark.parametrize(
    ("files", "inside", "text"),
    [
        (
            FILES,
            None,
            "several data sets in one; choose one folder or file by o/n:PATH, of main/test-0.parquet, main/train",
        ),
        (FILES, "other", "no data in 'other'"),
        (("data/test.jsonl",), None, "no training split"),
        (("rows.csv", "README.md"), None, "no .jsonl or .parquet files (endings: .csv)"),
        (("rows.jsonl", "rows.parquet"), None, "several data sets in one"),
    ],
)
def test_what_cannot_be_told_is_asked(files: tuple[str, ...], inside: str | None, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_files("o/n", files, inside)
    assert text in str(caught.value)


def test_the_training_command_takes_both_names(server: HubServer, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    words = [
        "--model_name_or_path",
        "owner/missing",
        "--dataset_name",
        "owner/sums",
        "--algorithm",
        "GRPO",
        "--dry-run",
    ]
    command = [sys.executable, "-m", "relax.entrypoints.train", *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "ConfigError: --model_name_or_path owner/missing is neither a folder here nor a model" in done.stderr
