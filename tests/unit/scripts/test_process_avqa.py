# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`process_avqa.py`: rows in the form of AVQA-R1-6K become rows that training reads."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from relax.data.chat import PromptBuilder
from relax.data.datasets import open_dataset
from scripts.tools import process_avqa
from scripts.tools.process_avqa import main, rows_of
from tests.builders import tiny_omni_processor

ROOT = Path(__file__).parents[3]
OPTIONS = ["A. a dog", "B. a cat", "C. a car", "D. a bell"]


def row(number: int = 7, **changed: Any) -> dict[str, Any]:
    """A row as the data set's own script writes it."""
    return {
        "problem_id": number,
        "problem": "What makes the sound?",
        "data_type": "image_audio",
        "problem_type": "multiple choice",
        "options": OPTIONS,
        "solution": "<answer>B</answer>",
        "path": {"image": f"images/sample_{number}.jpg", "audio": f"audios/sample_{number}.wav"},
        "data_source": "OmniInstruct_v1-AVQA",
        **changed,
    }


def media(folder: Path, number: int = 7) -> None:
    for name in ("images", "audios"):
        (folder / name).mkdir(exist_ok=True)
    Image.new("RGB", (64, 32), (9, 9, 200)).save(folder / f"images/sample_{number}.jpg")
    with wave.open(str(folder / f"audios/sample_{number}.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 3200))


def convert(folder: Path, rows: Any, *words: str) -> tuple[int, Path]:
    source, output = folder / "omni_rl_format_train.json", folder / "omni_rl_format_train_test.jsonl"
    source.write_text(rows if isinstance(rows, str) else json.dumps(rows, indent=2), "utf-8")
    return main(["--input-dir", str(source), "--output-dir", str(output), *words]), output


def written(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text("utf-8").splitlines()]


def test_rows_become_prompt_media_and_label(tmp_path: Path, capsys) -> None:
    code, output = convert(tmp_path, [row(), row(8, problem="<audio>Was hört man?", options=None)])
    assert code == 0
    kept = {"data_source": "OmniInstruct_v1-AVQA"}
    text = "<image><audio>What makes the sound?\nOptions:\nA. a dog\nB. a cat\nC. a car\nD. a bell"
    assert written(output) == [
        {
            "prompt": [{"content": text, "role": "user"}],
            "image": ["images/sample_7.jpg"],
            "audio": ["audios/sample_7.wav"],
            "label": "<answer>B</answer>",
            "problem_id": 7,
            **kept,
        },
        {
            "prompt": [{"content": "<image><audio>Was hört man?", "role": "user"}],
            "image": ["images/sample_8.jpg"],
            "audio": ["audios/sample_8.wav"],
            "label": "<answer>B</answer>",
            "problem_id": 8,
            **kept,
        },
    ]
    assert capsys.readouterr().out.splitlines() == ["rows read: 2", f"rows written: 2 to {output}"]


def test_md_dir_makes_paths_absolute(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train").mkdir()
    media(tmp_path / "train")
    monkeypatch.chdir(tmp_path)
    _, output = convert(tmp_path, [row()], "--md-dir", "train")
    assert written(output)[0]["image"] == [f"{tmp_path}/train/images/sample_7.jpg"]
    assert written(output)[0]["audio"] == [f"{tmp_path}/train/audios/sample_7.wav"]


def test_a_file_that_is_not_below_md_dir_is_told_with_its_row(tmp_path: Path, capsys) -> None:
    media(tmp_path)
    code, output = convert(tmp_path, [row(), row(8)], "--md-dir", str(tmp_path))
    assert code == 2
    assert f"omni_rl_format_train.json:1: {tmp_path}/images/sample_8.jpg is not there" in capsys.readouterr().err
    assert not output.exists()
    with pytest.raises(SystemExit):
        convert(tmp_path, [row()], "--md-dir", str(tmp_path / "none"))
    assert "is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("absolute", [False, True])
def test_the_output_loads_and_renders_with_as_many_placeholders_as_media(tmp_path: Path, absolute: bool) -> None:
    """A picture of 64 x 32 pixels has 8 tokens; relative paths start in the output's folder."""
    media(tmp_path)
    _, output = convert(tmp_path, [row()], *(["--md-dir", str(tmp_path)] if absolute else []))
    processor = tiny_omni_processor()
    keys: dict[str, Any] = {"input_key": "prompt", "label_key": "label"}
    keys["multimodal_keys"] = '{"image":"image","audio":"audio"}'
    builder = PromptBuilder(processor.tokenizer, processor, apply_chat_template=True, **keys)
    prompt = builder.build(open_dataset(str(output)).row(0))
    assert prompt.label == "<answer>B</answer>"
    assert [item.kind for item in prompt.media] == ["image", "audio"]
    pads = [processor.tokenizer.convert_tokens_to_ids(f"<|{kind}_pad|>") for kind in ("image", "audio")]
    assert [prompt.token_ids.count(pad) for pad in pads] == [1, 1]
    assert [prompt.expanded_ids.count(pad) for pad in pads] == [8, prompt.features[1].num_tokens]
    assert prompt.metadata == {"problem_id": 7, "data_source": "OmniInstruct_v1-AVQA"}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("text", "a row must be an object, this one is a str"),
        (row(problem=""), "'problem' must be text"),
        (row(path="a.wav"), "'path' must be an object of image and audio paths, got 'a.wav'"),
        (row(path={"smell": "x"}), "the unknown kind 'smell'"),
        (row(path={"image": None}), "the image of 'path' must be a path or a list of them"),
        (row(options="A. x"), "'options' must be a list"),
        (row(options=[1]), "'options' must be a list of texts"),
        (row(solution="B"), "'solution' must hold <answer>...</answer>, got 'B'"),
        (row(solution="<answer>E</answer>"), "the answer 'E' is none of the options"),
        (row(problem="<audio><audio>?"), "the text has 2 <audio> for 1 audio entries"),
    ],
)
def test_a_broken_row_ends_it_and_is_named(tmp_path: Path, capsys, broken: Any, words: str) -> None:
    code, output = convert(tmp_path, [row(), row(), broken])
    told = capsys.readouterr().err
    assert code == 2
    assert told.startswith(f"process_avqa: {tmp_path}/omni_rl_format_train.json:2: ")
    assert words in told
    assert [path.name for path in tmp_path.iterdir()] == ["omni_rl_format_train.json"]
    assert not output.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must hold one JSON list of rows"),
        ('{"problem": 1}', "must hold one JSON list of rows"),
        ("[]", "no row is left, so nothing is written"),
        (json.dumps([row()])[:-1], ":0: the file ends after the row"),
        (json.dumps([row(), row()])[:-20], ":1: the row is not JSON"),
        (json.dumps([row()])[:-1] + ",]", ":1: the row is not JSON"),
        (json.dumps([row()]) + "[]", "something follows the list's end: '[]'"),
        (f"[{json.dumps(row())} {json.dumps(row())}]", "'{' follows after the row"),
    ],
)
def test_a_file_that_is_no_list_is_told_with_its_place(tmp_path: Path, capsys, text: str, words: str) -> None:
    code, output = convert(tmp_path, text)
    assert (code, output.exists()) == (2, False)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 4096])
def test_a_list_is_read_in_parts_of_any_size(monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(process_avqa, "CHUNK", chunk)
    rows = [row(number, problem=f"né {'x' * number} ]}},") for number in range(9)]
    for text in (json.dumps(rows), json.dumps(rows, indent=2), f" [\n{', '.join(map(json.dumps, rows))}\n ] \n"):
        assert list(rows_of(io.StringIO(text), Path("in.json"))) == rows


def test_a_long_list_is_never_in_memory_as_a_whole() -> None:
    """The reader asks for a next part only when the rows of the last one are used up."""

    class Counted(io.StringIO):
        asked = 0

        def read(self, size: int | None = -1) -> str:
            self.asked += 1
            return super().read(size)

    file = Counted(
        json.dumps([row(number, problem="x" * 1000) for number in range(4000)])
    )  # about 5 million characters
    reader = rows_of(file, Path("in.json"))
    assert next(reader)["problem_id"] == 0
    assert file.asked == 1
    assert sum(1 for _ in reader) == 3999
    assert file.asked > 4


def test_the_documented_command_runs_as_it_is_typed(tmp_path: Path) -> None:
    folder = tmp_path / "AVQA-R1-6K/AVQA_R1/train"
    folder.mkdir(parents=True)
    media(folder)
    source, output = folder / "omni_rl_format_train.json", folder / "omni_rl_format_train_test.jsonl"
    source.write_text(json.dumps([row()]))
    words = ["--input-dir", str(source), "--output-dir", str(output), "--md-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "scripts/tools/process_avqa.py", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert written(output)[0]["audio"] == [f"{folder}/audios/sample_7.wav"]


def test_help_imports_nothing_heavy() -> None:
    heavy = "import sys; import scripts.tools.process_avqa; print({'torch', 'transformers', 'PIL'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", heavy], cwd=ROOT, capture_output=True, text=True)
    assert told.stdout.strip() == "set()", told
