# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""--loss-type sft among the flags: what is derived, what is refused and in which words, what has no effect."""

from __future__ import annotations

from typing import Any

import pytest

from relax.config.machine import Machine
from relax.config.report import dry_run_report
from relax.config.run import RunConfig, parse_args
from relax.config.supervised import held_out_rows
from relax.core.sft_build import num_producers, sft_optimizer_spec
from relax.utils.errors import ConfigError

BASE = "--loss-type sft --hf-checkpoint m --prompt-data p.jsonl --num-epoch 2 --global-batch-size 32"
DYNAMIC = "--use-dynamic-batch-size --max-tokens-per-gpu 1024"


def parse(text: str = "", *, base: str = f"{BASE} {DYNAMIC}", machine: Machine | None = None) -> RunConfig:
    return parse_args([*base.split(), *text.split()], machine=machine or Machine())


def refusal(text: str, **more: Any) -> str:
    with pytest.raises(ConfigError) as error:
        parse(text, **more)
    return str(error.value)


def test_dynamic_batches_are_required() -> None:
    assert "--loss-type sft requires --use-dynamic-batch-size" in refusal("", base=BASE)


def test_one_rollout_is_one_step_and_the_loss_is_averaged_over_tokens() -> None:
    config = parse()
    assert (config.steps_per_rollout, config.samples_per_rollout, config.algorithm.loss_reduction) == (
        1,
        32,
        "token_mean",
    )
    assert config.sft.balance_data is True
    assert "--balance-data is on, as always with --loss-type sft" in config.notes
    assert config.num_rollouts(100) == 6  # 2 x 100 rows in steps of 32


@pytest.mark.parametrize("name", ["sft_loss", "sft-loss"])
def test_old_names_of_the_loss_are_taken_with_a_note(name: str) -> None:
    config = parse(base=f"{BASE.replace('--loss-type sft', f'--loss-type {name}')} {DYNAMIC}")
    assert config.is_supervised and config.algorithm.loss_type == "sft"
    assert f"--loss-type {name} is an old name: write --loss-type sft" in config.notes


def test_the_producer_needs_no_card_and_predictions_share_the_actors() -> None:
    eight = Machine(gpus=8, sglang=True)
    assert {role: entry.gpus for role, entry in parse(machine=eight).resource.items()} == {"sft": 0, "actor": 8}
    text = "--sft-predict-interval 10 --eval-size 0.01 --save s"
    resource = """{"sft":[1,0],"actor":[1,8],"rollout":[1,8]}"""
    config = parse(f"{text} --resource {resource}", machine=eight)
    assert (config.needed_gpus, config.num_engines, config.data_parallel_size) == (8, 8, 8)  # the larger, not the sum
    without = parse(f"--resource {resource}", machine=eight)
    assert (without.needed_gpus, without.num_engines) == (8, 0)
    assert any('"rollout" in --resource takes nothing' in note for note in without.notes)


def test_a_resource_without_a_producer_fails_at_once() -> None:
    assert '--resource has no entry "sft"' in refusal('--resource {"actor":[1,1]}')


def test_steps_in_flight_are_the_larger_of_both_flags() -> None:
    assert parse().steps_in_flight == 1
    assert parse("--sft-max-in-flight-steps 4 --max-staleness 1").steps_in_flight == 4
    assert parse("--max-staleness 4").steps_in_flight == 5


def test_prepacking_needs_two_steps_in_flight_and_rows_for_single_ranks() -> None:
    assert "needs at least 2 steps in flight" in refusal("--sft-async-prepack --per-rank-fetch")
    assert "--per-rank-fetch" in refusal("--sft-async-prepack --max-staleness 1")
    assert parse("--sft-async-prepack --per-rank-fetch --max-staleness 1").sft_shards == 1


def test_shards_come_from_the_environment_and_must_divide_the_batches() -> None:
    def machine(shards: str) -> Machine:
        return Machine(gpus=8, sft_shards=shards)

    prepack = "--sft-async-prepack --per-rank-fetch --sft-max-in-flight-steps 4"
    for shards in (2, 4):  # 32 / 8 ranks = 4
        assert parse(prepack, machine=machine(str(shards))).sft_shards == shards
    assert "RELAX_SFT_TQ_SHARDS=3 does not divide --global-batch-size 32" in refusal(prepack, machine=machine("3"))
    assert "8 ranks = 4" in refusal(prepack, machine=machine("8"))
    assert "expected a whole number" in refusal(prepack, machine=machine("two"))
    assert parse(machine=machine("3")).sft_shards == 1  # alone it switches nothing on


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("--eval-interval 10", "neither is given"),
        ("--eval-interval 10 --eval-size 0.1 --eval-prompt-data name e.jsonl", "both are given"),
    ],
)
def test_an_evaluation_has_exactly_one_source(text: str, part: str) -> None:
    words = refusal(text)
    assert words.startswith("Under --loss-type sft with --eval-interval set") and part in words


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("--eval-config e.yaml --eval-interval 1", "--eval-config"),
        ("--sft-predict-interval 5 --eval-size 2", "--sft-predict-interval needs --save"),
        ("--sft-predict-interval 5 --save s", "no evaluation source"),
        ("--eval-size 2", "without --eval-interval"),
        ("--eval-size 2.5 --eval-interval 1", "whole number"),
        ("--fully-async", "--fully-async is a mode of reinforcement learning"),
        ("--hybrid", "--hybrid is a mode of reinforcement learning"),
        ("--n-samples-per-prompt 2", "trains each row once"),
        ("--rollout-batch-size 64", "one rollout is one optimizer step"),
        ("--sft-oversize-strategy custom", "need each other"),
    ],
)
def test_what_is_refused(text: str, part: str, tmp_path: Any) -> None:
    (tmp_path / "e.yaml").write_text("eval: {datasets: [{name: a, path: b.jsonl}]}")
    assert part in refusal(text.replace("e.yaml", str(tmp_path / "e.yaml")))


def test_flags_of_sft_are_refused_elsewhere() -> None:
    base = "--hf-checkpoint m --prompt-data p.jsonl --num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 2"
    assert "--eval-size belongs to --loss-type sft" in refusal("--eval-size 3", base=base)


def test_flags_of_reinforcement_learning_are_named_as_without_effect() -> None:
    assert "--use-tis has no effect with --loss-type sft" in parse("--use-tis").notes


def test_the_hold_out_is_a_share_below_one_and_a_number_from_one_on() -> None:
    assert [held_out_rows(size, 100) for size in (0.01, 0.29, 0.001, 1, 7)] == [1, 29, 1, 1, 7]
    with pytest.raises(ConfigError, match="leaves none to train on"):
        held_out_rows(100, 100)


def test_the_report_says_how_rows_flow() -> None:
    text = "--eval-size 0.1 --eval-interval 5 --save s --save-interval 2"
    report = dry_run_report(parse(text), rows=100)
    assert report["sft"]["train_rows"] == 90 and report["sft"]["held_out_rows"] == 10
    assert report["batches"]["rollouts"] == 5  # 2 x 90 rows in steps of 32
    assert report["run"]["checkpoints"]["after_rollouts"] == [2, 4, 5]
    assert report["sft"]["steps_in_flight"] == 1


@pytest.mark.parametrize("cards", [1, 8])
def test_the_resources_of_the_scripts_fit_their_cards(cards: int) -> None:
    """Actor and rollout have the same cards: [1, 8] and [1, 8] on eight, [1, 1] and [1, 1] on one."""
    text = "--sft-predict-interval 10 --eval-size 0.01 --eval-interval 10 --save s --per-rank-fetch"
    text += f' --num-data-storage-units 8 --resource {{"sft":[1,0],"actor":[1,{cards}],"rollout":[1,{cards}]}}'
    config = parse(text, machine=Machine(gpus=cards, sglang=True))
    assert (config.needed_gpus, config.num_engines, config.shares_cards) == (cards, cards, True)
    report = dry_run_report(config)
    last = report["run"]["resources"][-1]
    assert last.split()[:2] == ["needed", str(cards)] and "largest shared role" in last


def test_the_capacity_of_a_micro_batch_counts_context_parallel_ranks() -> None:
    assert parse().supervised_capacity == 1024
    assert dry_run_report(parse())["sft"]["tokens_of_a_micro_batch"] == 1024


@pytest.mark.parametrize(
    ("text", "producers"),
    [
        ("", 2),
        ("--sft-oversize-strategy skip", 1),
        ("--sft-oversize-strategy truncate_left", 1),  # a cut may leave nothing to train
        ("--custom-dataset-class package.module.Rows", 1),
        ("--custom-dataset-class-path package.module.Rows", 1),
        ("--task-type seq_cls --num-labels 2 --problem-type single_label_classification --label-key label", 1),
    ],
)
def test_one_local_producer_writes_all_shards_where_rows_may_be_left_out(text: str, producers: int) -> None:
    flow = "--sft-async-prepack --per-rank-fetch --sft-max-in-flight-steps 4"
    config = parse(f"{flow} {text}", machine=Machine(sft_shards="2"))
    assert config.sft_shards == 2
    assert num_producers(config) == producers


def test_the_decay_ends_with_the_epochs() -> None:
    config = parse("--lr-decay-style cosine")
    assert sft_optimizer_spec(config, rows=100).decay_steps == 6  # 2 x 100 rows in steps of 32
    assert sft_optimizer_spec(parse("--lr-decay-style cosine --lr-decay-iters 9"), rows=100).decay_steps == 9


def test_logits_come_in_the_chunks_of_either_flag() -> None:
    assert parse("--sft-chunked-logits --sft-logits-chunk-size 64").sft.sft_logits_chunk_size == 64
    assert "has no effect without --sft-chunked-logits" in refusal("--sft-logits-chunk-size 64")


def test_documents_need_no_labels_and_make_no_predictions() -> None:
    assert parse("--sft-training-mode cpt").sft.sft_training_mode == "cpt"
    predict = "--sft-training-mode cpt --sft-predict-interval 5 --eval-size 2 --save s"
    assert "rows of --sft-training-mode cpt have none" in refusal(predict)
