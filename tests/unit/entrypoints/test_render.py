# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from pathlib import Path

import numpy as np
import pytest

from relax.engine.sft.dataset.examples import SftExample
from relax.engine.sft.dataset.shown_text import example_text
from relax.entrypoints.render import main
from tests.builders import build_tiny_model_folder, tiny_tokenizer, write_jsonl

ROWS = [{"q": f"{n}+{n}?", "a": str(2 * n)} for n in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"))


def flags(model: Path, data: Path, *more: str) -> list[str]:
    text = (
        f"--loss-type sft --hf-checkpoint {model} --prompt-data {data} --input-key q --label-key a "
        "--use-dynamic-batch-size --max-tokens-per-gpu 64 --global-batch-size 1 --num-rollout 1"
    )
    return [*text.split(), *more]


def test_a_row_is_shown_with_what_is_trained(model, tmp_path, capsys):
    data = write_jsonl(tmp_path / "train.jsonl", ROWS)
    assert main(["--row", "2", *flags(model, data)]) == 0
    first, _, text = capsys.readouterr().out.partition("\n")
    assert text == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n«4<|im_end|>»\n\n"
    assert first.startswith("row 2: ")
    assert first.endswith(" 2 trained")  # the digit and the token that closes the turn


def test_a_row_that_is_left_out_says_why(model, tmp_path, capsys):
    data = write_jsonl(tmp_path / "train.jsonl", [{"q": "long " * 99, "a": "b"}])
    assert main(flags(model, data, "--sft-oversize-strategy", "skip")) == 0
    assert capsys.readouterr().out.startswith("row 0 is left out: oversize: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--row", "3"], "--row 3 is not one of the 3 rows of --prompt-data"),
        (["--input-key", "question"], "SFT row missing prompt key 'question'"),
    ],
)
def test_wrong_input_is_an_error(model, tmp_path, capsys, words, message):
    data = write_jsonl(tmp_path / "train.jsonl", ROWS)
    assert main([*flags(model, data), *words]) == 2
    assert message in capsys.readouterr().err


def test_colour_and_repeated_media_tokens():
    by = tiny_tokenizer()
    ids = by("<|image_pad|><|image_pad|><|image_pad|>a b<|im_end|>", add_special_tokens=False)["input_ids"]
    mask = [0, 0, 0, *[1] * (len(ids) - 3)]
    example = SftExample(np.asarray(ids, np.int32), np.asarray(mask, np.uint8), 0)
    assert example_text(example, by, colour=False) == "<|image_pad|> x 3«a b<|im_end|>»"
    assert example_text(example, by, colour=True) == "<|image_pad|> x 3\x1b[32ma b<|im_end|>\x1b[0m"
