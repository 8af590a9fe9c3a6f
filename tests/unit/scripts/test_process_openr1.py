# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`process_openr1.py`: rows in the form of multimodal-open-r1-8k-verified become rows that training reads."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from relax.data.chat import PromptBuilder
from relax.data.datasets import open_dataset
from scripts.tools.process_openr1 import main
from tests.builders import tiny_omni_processor

ROOT = Path(__file__).parents[3]
SCHEMA = pa.schema(
    [
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("problem", pa.string()),
        ("solution", pa.string()),
        ("original_question", pa.string()),
        ("original_answer", pa.string()),
    ]
)


def png(width: int = 64, height: int = 32) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, "PNG")
    return out.getvalue()


def row(problem: str = "How many?", solution: str = "<think>t</think>\n<answer>3</answer>", **changed: Any) -> Any:
    image = {"bytes": png(), "path": None}
    extra = {"original_question": "q", "original_answer": "a"}
    return {"image": image, "problem": problem, "solution": solution, **extra, **changed}


def convert(folder: Path, rows: list[Any], schema: pa.Schema = SCHEMA) -> tuple[int, Path]:
    source, output = folder / "train-00000-of-00001.parquet", folder / "train-00000-of-00001-test.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), source)
    return main(["--input-dir", str(source), "--output-dir", str(output)]), output


def test_rows_become_prompt_image_and_label(tmp_path: Path, capsys) -> None:
    rows = [
        row(),
        row("Look: <image> What is it?", "<think>so \\boxed{7}</think> <answer>$\\frac{1}{2}$</answer>"),
        row("Radius?", "It is \\boxed{2\\pi}."),
        row("And this?", "Nobody knows."),
        row(image=None),
    ]
    code, output = convert(tmp_path, rows)
    assert code == 0
    image = [{"bytes": png(), "path": None}]
    assert pq.read_table(output).to_pylist() == [
        {"prompt": [{"content": "<image>How many?", "role": "user"}], "image": image, "label": "<answer>3</answer>"},
        {
            "prompt": [{"content": "Look: <image> What is it?", "role": "user"}],
            "image": image,
            "label": "<answer>$\\frac{1}{2}$</answer>",
        },
        {"prompt": [{"content": "<image>Radius?", "role": "user"}], "image": image, "label": "<answer>2\\pi</answer>"},
    ]
    source = tmp_path / "train-00000-of-00001.parquet"
    assert capsys.readouterr().out.splitlines() == [
        "rows read: 5",
        f"rows written: 3 to {output}",
        f"rows left out: 1, no <answer>...</answer> and no box in the solution (first: {source}:3)",
        f"rows left out: 1, no image (first: {source}:4)",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [output.name, source.name]


def test_the_output_loads_and_renders_with_as_many_placeholders_as_media(tmp_path: Path) -> None:
    """A picture of 64 x 32 pixels is 4 x 2 patches of 16 pixels after merging: 8 tokens of the tiny processor."""
    _, output = convert(tmp_path, [row(), row("Compare <image> please.")])
    processor = tiny_omni_processor()
    keys: dict[str, Any] = {"input_key": "prompt", "label_key": "label", "multimodal_keys": '{"image":"image"}'}
    builder = PromptBuilder(processor.tokenizer, processor, apply_chat_template=True, **keys)
    data = open_dataset(str(output))
    built = [builder.build(data.row(index)) for index in range(len(data))]
    assert [prompt.label for prompt in built] == ["<answer>3</answer>"] * 2
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for prompt in built:
        assert [item.kind for item in prompt.media] == ["image"]
        assert prompt.token_ids.count(pad) == 1
        assert prompt.expanded_ids.count(pad) == 8
        assert prompt.metadata == {}


def test_many_rows_are_converted_batch_by_batch(tmp_path: Path) -> None:
    """150 rows are batches of 64, 64 and 22; the order stays."""
    _, output = convert(tmp_path, [row(f"Number {number}?") for number in range(150)])
    assert [group.num_rows for group in groups(output)] == [64, 64, 22]
    texts = [line["prompt"][0]["content"] for line in pq.read_table(output).to_pylist()]
    assert texts == [f"<image>Number {number}?" for number in range(150)]


def groups(path: Path) -> list[Any]:
    meta = pq.ParquetFile(path).metadata
    return [meta.row_group(number) for number in range(meta.num_row_groups)]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (row(problem=None), "'problem' must be text, got None"),
        (row(solution=""), "'solution' must be text, got ''"),
        (row("<image> and <image>"), "the text has 2 <image> for 1 image entries"),
        (row(image={"bytes": b"GARBAGE!", "path": None}), "8 bytes of no known image format"),
        (row(image={"bytes": None, "path": None}), "neither bytes nor a path"),
    ],
)
def test_a_broken_row_ends_it_and_is_named(tmp_path: Path, capsys, broken: Any, words: str) -> None:
    code, output = convert(tmp_path, [*[row()] * 70, broken])
    assert code == 2
    assert capsys.readouterr().err.startswith(f"process_openr1: {tmp_path / 'train-00000-of-00001.parquet'}:70: ")
    assert not output.exists()
    convert(tmp_path, [broken])
    assert words in capsys.readouterr().err
    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"]  # nothing half-written stays


def test_an_output_that_is_there_stays_when_the_input_is_broken(tmp_path: Path) -> None:
    _, output = convert(tmp_path, [row()])
    before = output.read_bytes()
    assert convert(tmp_path, [row(), row(problem="")])[0] == 2
    assert output.read_bytes() == before


def test_an_input_of_another_form_is_told(tmp_path: Path, capsys) -> None:
    assert convert(tmp_path, [{"question": "q"}], pa.schema([("question", pa.string())]))[0] == 2
    assert "no column image, problem, solution; it has question" in capsys.readouterr().err
    assert convert(tmp_path, [row(solution="?")])[0] == 2
    assert "no row is left, so nothing is written" in capsys.readouterr().err
    text = tmp_path / "text.parquet"
    text.write_text("hello")
    assert main(["--input-dir", str(text), "--output-dir", str(tmp_path / "out.parquet")]) == 2
    assert f"{text}: cannot be converted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "output", "words"),
    [
        (".", "out.parquet", "is a folder; name the file in it"),
        ("none.parquet", "out.parquet", "is not there"),
        ("in.parquet", ".", "is a folder; write"),
        ("in.parquet", "out.jsonl", "must end in .parquet"),
        ("in.parquet", "no/out.parquet", "is not there; make it first"),
        ("in.parquet", "in.parquet", "is the input file"),
    ],
)
def test_wrong_paths_are_told_before_anything_is_read(
    tmp_path: Path, capsys, source: str, output: str, words: str
) -> None:
    (tmp_path / "in.parquet").write_text("never read")
    with pytest.raises(SystemExit) as ended:
        main(["--input-dir", str(tmp_path / source), "--output-dir", str(tmp_path / output)])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_the_documented_command_runs_as_it_is_typed(tmp_path: Path) -> None:
    folder = tmp_path / "multimodal-open-r1-8k-verified/data"
    folder.mkdir(parents=True)
    source, output = folder / "train-00000-of-00001.parquet", folder / "train-00000-of-00001-test.parquet"
    pq.write_table(pa.Table.from_pylist([row()], schema=SCHEMA), source)
    words = ["scripts/tools/process_openr1.py", "--input-dir", str(source), "--output-dir", str(output)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert pq.read_metadata(output).num_rows == 1


def test_help_imports_nothing_heavy() -> None:
    names = "{'torch', 'transformers', 'pyarrow', 'PIL'}"
    heavy = f"import sys; import scripts.tools.process_openr1; print({names} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", heavy], cwd=ROOT, capture_output=True, text=True)
    assert told.stdout.strip() == "set()", told
