# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`prepare_classification_sft_data.py`: rows in the form of the three data sets become rows that training reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.seq_cls_sft.tools.prepare_classification_sft_data import SOURCES, kept_rows, main
from relax.data.datasets import open_dataset
from relax.engine.sft.dataset.options import SftDataOptions
from relax.engine.sft.dataset.rows import SampleReader

ROOT = Path(__file__).parents[3]
TOOL = "examples/seq_cls_sft/tools/prepare_classification_sft_data.py"


def write(folder: Path, name: str, train: list[dict[str, Any]], evaluation: list[dict[str, Any]]) -> None:
    for file, rows in ((SOURCES[name].train, train), (SOURCES[name].eval, evaluation)):
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    films = [{"idx": n, "sentence": f"film {n} ", "label": n % 2} for n in range(300)]
    news = [{"text": f"news {n}", "label": n % 4} for n in range(300)]
    feelings = [{"text": f"feeling {n}", "labels": [n % 28, (n + 3) % 28], "id": str(n)} for n in range(300)]
    for name, rows in (("sst2", films), ("ag_news", news), ("go_emotions", feelings)):
        write(folder, name, rows, rows[:20])
    return folder


def prepare(source: Path, output: Path, *words: str) -> int:
    return main(["--source-dir", str(source), "--output-dir", str(output), *words])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_data_set_becomes_messages_and_label(source: Path, tmp_path: Path, capsys) -> None:
    assert prepare(source, tmp_path / "out") == 0
    films = lines(tmp_path / "out/sst2/full/train.jsonl")
    assert films[3] == {
        "messages": [{"role": "user", "content": "film 3"}],
        "label": 1,
        "source_id": "sst2:train:3",
    }
    assert [len(films), len(lines(tmp_path / "out/sst2/full/eval.jsonl"))] == [300, 20]
    assert lines(tmp_path / "out/ag_news/full/train.jsonl")[7]["label"] == 3
    # Row 26 has the classes 26 and 29 - 28 = 1.
    assert lines(tmp_path / "out/go_emotions/full/train.jsonl")[26]["label"] == [1, 26]
    assert "sst2: 300 rows" in (told := capsys.readouterr().out)
    assert "4 global batches an epoch" in told  # 300 // 64


@pytest.mark.parametrize("name", SOURCES)
def test_the_rows_are_read_as_the_training_scripts_read_them(name: str, source: Path, tmp_path: Path) -> None:
    assert prepare(source, tmp_path, "--dataset", name) == 0
    file, meant = tmp_path / name / "full/train.jsonl", SOURCES[name]
    kind = "multi" if meant.multi_label else "single"
    reader = SampleReader(
        SftDataOptions(
            files=str(file), model="", task_type="seq_cls", input_key="messages", label_key="label",
            num_labels=meant.num_labels, problem_type=f"{kind}_label_classification",  # type: ignore[arg-type]
        )
    )  # fmt: skip
    rows = open_dataset(str(file))
    labels = [reader.sample(rows.row(place)).label for place in range(len(rows))]
    assert len(labels) == 300
    assert isinstance(labels[0], tuple) == meant.multi_label


def test_smaller_subsets_are_whole_batches_and_always_the_same(source: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / "first", tmp_path / "again"]
    for output in outputs:
        assert prepare(source, output, "--dataset", "sst2", "--subset", "smoke", "--global-batch-size", "8") == 0
    first, again = (output / "sst2/smoke" for output in outputs)
    assert [len(lines(first / f"{split}.jsonl")) for split in ("train", "eval")] == [32, 8]  # 4 and 1 batches of 8
    assert [(first / f"{split}.jsonl").read_bytes() for split in ("train", "eval")] == [
        (again / f"{split}.jsonl").read_bytes() for split in ("train", "eval")
    ]
    places = [int(row["source_id"].rpartition(":")[2]) for row in lines(first / "train.jsonl")]
    assert places == sorted(set(places))
    assert max(places) > 200  # drawn from everywhere


def test_an_extended_subset_holds_the_smoke_one_and_stops_at_the_data() -> None:
    smoke, extended = (set(kept_rows(5000, "train", name, 64)) for name in ("smoke", "extended"))
    assert [len(smoke), len(extended)] == [256, 4096]
    assert smoke < extended
    assert kept_rows(100, "train", "extended", 64) == list(range(100))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"sentence": "a", "label": -1}],
            "sst2 data/train-00000-of-00001.parquet:0: 'label' must be a class below 2",
        ),
        ([{"sentence": " ", "label": 1}], "'sentence' must be text"),
        ([{"text": "a", "label": 1}], "no column sentence; it has text, label"),
    ],
)
def test_a_broken_row_ends_it_and_leaves_no_file(tmp_path: Path, capsys, rows: list, message: str) -> None:
    write(tmp_path / "source", "sst2", rows, rows)
    assert prepare(tmp_path / "source", tmp_path / "out", "--dataset", "sst2") == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.jsonl"))


def test_a_missing_source_says_how_it_is_fetched(tmp_path: Path, capsys) -> None:
    assert prepare(tmp_path, tmp_path / "out", "--dataset", "ag_news") == 2
    told = capsys.readouterr().err
    assert "hf download --repo-type dataset fancyzhx/ag_news data/train-00000-of-00001.parquet" in told
    assert "--revision eb185aade064a813bc0b7f42de02595523103ca4" in told


def test_the_documented_command_runs_as_it_is_typed(source: Path, tmp_path: Path) -> None:
    words = [
        "--dataset",
        "all",
        "--subset",
        "full",
        "--global-batch-size",
        "64",
        "--output-dir",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [sys.executable, TOOL, *words, "--source-dir", str(source)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "out").rglob("*.jsonl"))) == 6
