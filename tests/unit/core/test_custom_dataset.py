# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--custom-dataset-class-path` and its short name reach the producer, which is then one."""

import dataclasses
from pathlib import Path

import pytest

from relax.config.machine import Machine
from relax.config.run import RunConfig, parse_args
from relax.core.sft_build import build_renderer, num_producers
from relax.engine.sft.dataset.examples import SftExample, SftExamples
from relax.utils.errors import ConfigError
from tests.builders import tiny_tokenizer, write_jsonl

ROWS = [{"q": f"{n}?", "a": str(n)} for n in range(4)]


class Polite(SftExamples):
    def sample(self, raw):
        sample = super().sample(raw)
        first = {"role": "system", "content": "Be polite."}
        return dataclasses.replace(sample, messages=(first, *sample.messages))


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    data = write_jsonl(tmp_path / "train.jsonl", ROWS)
    text = (
        f"--loss-type sft --hf-checkpoint {tmp_path}/model --prompt-data {data} --input-key q --label-key a "
        "--use-dynamic-batch-size --max-tokens-per-gpu 64 --global-batch-size 2 --num-rollout 1 "
        "--eval-size 1 --eval-interval 1"
    )
    return text.split()


def parse(words: list[str]) -> RunConfig:
    return parse_args(words, machine=Machine(sft_shards=2))


@pytest.mark.parametrize("flag", ["--custom-dataset-class-path", "--custom-dataset-class"])
def test_the_class_gives_training_and_evaluation_rows(flags: list[str], flag: str) -> None:
    config = parse([*flags, flag, f"{__name__}.Polite"])
    renderer = build_renderer(config)
    assert type(renderer.examples) is Polite
    assert [type(rows.examples) for rows in renderer.evals.values()] == [Polite]
    example = renderer.examples.example(0)
    assert isinstance(example, SftExample)
    assert tiny_tokenizer().decode(example.tokens.tolist()).startswith("<|im_start|>system\nBe polite.<|im_end|>")
    assert num_producers(config) == 1


def test_without_it_the_files_are_read(flags: list[str]) -> None:
    assert type(build_renderer(parse(flags)).examples) is SftExamples


def test_two_different_classes_are_an_error(flags: list[str]) -> None:
    both = ["--custom-dataset-class", "a.B", "--custom-dataset-class-path", f"{__name__}.Polite"]
    with pytest.raises(ConfigError, match="--custom-dataset-class"):
        parse([*flags, *both])
