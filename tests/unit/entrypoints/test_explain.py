# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax explain`: one table from prompts to micro-batches, on any machine (U1)."""

from __future__ import annotations

import shlex

import pytest

from relax.config.machine import Machine
from relax.config.run import parse_args
from relax.entrypoints.explain import explanation, main

COMMAND = """
    --hf-checkpoint /nowhere/model --prompt-data /nowhere/prompts.jsonl --rm-type math
    --rollout-batch-size 32 --n-samples-per-prompt 8 --num-rollout 200 --save-interval 20 --save /nowhere/run
    --resource '{"actor": [1, 4], "rollout": [1, 4]}'
"""


def rows(text: str) -> dict[str, list[str]]:
    """{first column: the words behind it} of the table's lines."""
    table = text.split("\n\n")[0].splitlines()
    return {
        line[:39].strip().removeprefix("x ").removeprefix("= ").removeprefix("/ "): line[39:].split() for line in table
    }


def explained(flags: str = "") -> str:
    return explanation(parse_args(shlex.split(COMMAND + flags), machine=Machine()))


def test_the_numbers_follow_from_each_other() -> None:
    """32 prompts x 8 = 256 samples; 128 a step: 2 steps; over 4 ranks 32 samples, 4 at a time: 8 micro-batches."""
    table = rows(explained("--global-batch-size 128 --micro-batch-size 4"))
    assert table["prompts"] == ["32", "--rollout-batch-size", "(flag)"]
    assert table["responses to each"] == ["8", "--n-samples-per-prompt", "(flag)"]
    assert table["samples of an optimizer step"] == ["128", "--global-batch-size", "(flag)"]
    assert table["optimizer steps"][0] == "400"  # of the run: 200 rounds x 2
    assert table["training ranks"] == ["4", "--resource", "(flag)"]
    assert table["micro-batches of a rank"] == ["8", "--micro-batch-size", "(flag)"]
    assert table["rounds"] == ["200", "--num-rollout", "(flag)"]
    assert table["samples"] == ["51200"]  # 200 x 256
    assert table["checkpoints"] == ["10", "--save-interval", "(flag),", "--save", "(flag)"]
    assert table["inference engines"][0] == "4"
    (of_a_round,) = [
        line.split() for line in explained("--global-batch-size 128").splitlines() if "= optimizer" in line
    ]
    assert of_a_round == ["=", "optimizer", "steps", "2", "--num-steps-per-rollout", "(derived)"]


def test_packed_batches_and_rounds_that_the_data_decides_are_said_to_be_open() -> None:
    flags = "--use-dynamic-batch-size --max-tokens-per-gpu 9216"
    assert rows(explained(flags))["micro-batches of a rank"] == ["by", "length", "--max-tokens-per-gpu", "(flag)"]
    text = explained("--num-epoch 2")
    assert rows(text)["rounds"] == ["by", "the", "data", "--num-rollout", "(flag),", "--num-epoch", "(flag)"]
    assert "checkpoints" not in rows(text)


def test_cards_and_notes_stand_below() -> None:
    text = explained("--sglang-mem-fraction-static 0.8")
    _, cards, notes = text.split("\n\n")
    assert "actor" in cards and "rollout" in cards and "training fsdp (by machine)" in cards
    assert notes == "note: without effect on --rollout-backend native: --sglang-mem-fraction-static 0.8"


def test_sizes_that_do_not_fit_are_an_error_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(COMMAND + "--global-batch-size 100")) == 2
    error = capsys.readouterr().err
    assert "32 x --n-samples-per-prompt 8 = 256 samples a round" in error
    assert "use 64 or 128" in error


def test_it_prints_the_table_where_nothing_of_the_run_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(COMMAND)) == 0
    assert capsys.readouterr().out.startswith("one round (rollout)")


def test_supervised_training_is_told_in_rows_and_steps() -> None:
    """200 steps of 32 rows; rows go to 2 ranks in micro-batches of 4096 tokens."""
    command = """
        --loss-type sft --hf-checkpoint /nowhere/model --prompt-data /nowhere/rows.jsonl --input-key a --label-key b
        --use-dynamic-batch-size --max-tokens-per-gpu 4096 --global-batch-size 32 --num-rollout 200 --max-staleness 4
        --resource '{"sft": [1, 0], "actor": [1, 2]}'
    """
    text = explanation(parse_args(shlex.split(command), machine=Machine()))
    table = {line[:39].strip(): line[39:].split() for line in text.split("\n\n")[0].splitlines()}
    assert table["rows (pairs, for preferences)"] == ["32", "--global-batch-size", "(flag)"]
    assert table["training ranks"] == ["2", "--resource", "(flag)"]
    assert table["tokens of a micro-batch, at most"] == ["4096", "--max-tokens-per-gpu", "(flag)"]
    assert table["steps that may be ahead of training"][0] == "5"  # --max-staleness + 1
    assert table["optimizer steps"] == ["200", "--num-rollout", "(flag)"]
    assert table["rows"] == ["6400"]  # 200 x 32
    assert "prompt" not in text
