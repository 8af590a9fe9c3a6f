# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`check_sft_data.py` prints what the published check prints, and its exit code says whether all is well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.tools.check_sft_data import main
from tests.builders import write_jsonl

MATH = "sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet"
POKEMON = "sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_{}.parquet"


def write(path: Path, *columns: str, rows: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: ["x"] * rows for name in columns}), path)


def test_files_that_are_missing_lack_columns_or_are_right(tmp_path: Path, capsys) -> None:
    write(tmp_path / MATH, "problem", "generated_solution", "expected_answer", rows=3)
    write(tmp_path / POKEMON.format("en"), "conversations")
    assert main(["--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "math: rows=3, missing=[]",
        "pokemon_en: rows=2, missing=['images']",
        f"pokemon_zh: missing {tmp_path / POKEMON.format('zh')}",
    ]


def test_all_well_is_exit_code_0(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path / MATH, "problem", "generated_solution")
    for language in ("en", "zh"):
        write(tmp_path / POKEMON.format(language), "conversations", "images")
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    assert main([]) == 0


@pytest.mark.parametrize(("columns", "code", "missing"), [("q, a", 0, []), ("q,b", 1, ["b"])])
def test_a_file_of_your_own(tmp_path: Path, capsys, columns: str, code: int, missing: list[str]) -> None:
    file = write_jsonl(tmp_path / "train.jsonl", [{"q": "1", "a": "2"}])
    assert main(["--file", str(file), "--columns", columns]) == code
    assert capsys.readouterr().out == f"train.jsonl: rows=1, missing={missing}\n"


def test_a_broken_file_is_told(tmp_path: Path, capsys) -> None:
    (tmp_path / "train.parquet").write_text("no parquet")
    assert main(["--file", str(tmp_path / "train.parquet")]) == 2
    assert "cannot be read as Parquet" in capsys.readouterr().err


PUBLISHED = """
import subprocess
import sys
from pathlib import Path
import pyarrow.parquet as pq

checks = {
    "math": (
        Path("/root/sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet"),
        {"problem", "generated_solution"},
    ),
    "pokemon_en": (
        Path("/root/sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_en.parquet"),
        {"conversations", "images"},
    ),
    "pokemon_zh": (
        Path("/root/sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_zh.parquet"),
        {"conversations", "images"},
    ),
}

for name, (path, required) in checks.items():
    if not path.exists():
        print(f"{name}: missing {path}")
        continue
    names = set(pq.ParquetFile(path).schema_arrow.names)
    missing = required - names
    print(f"{name}: rows={pq.ParquetFile(path).metadata.num_rows}, missing={sorted(missing)}")
"""


def test_it_prints_what_the_published_check_prints(tmp_path: Path, capsys) -> None:
    write(tmp_path / MATH, "problem", rows=3)
    write(tmp_path / POKEMON.format("en"), "conversations", "images")
    main(["--data-dir", str(tmp_path)])
    ours = capsys.readouterr().out
    published = PUBLISHED.replace('"/root/', f'"{tmp_path}/')
    done = subprocess.run([sys.executable, "-c", published], capture_output=True, text=True, check=True)
    assert ours == done.stdout
