# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The second set of spellings becomes canonical flags, and remembers that it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from relax.config.command_line import read_command_line
from relax.config.machine import Machine
from relax.config.run import RunConfig, parse_args
from relax.utils.errors import ConfigError

SINGLE_NODE = """
    --model_name_or_path Qwen/Qwen3-Omni-30B --dataset_name ./data/multimodal_dataset
    --multimodal_keys text,image,audio,video --algorithm GRPO --train_mode fully_async --num_rollouts 8
    --micro_batch_size 4 --epochs 10 --output_dir ./checkpoints/relax_qwen3_omni --report_to wandb
"""
CLUSTER = """
    --model_name_or_path Qwen/Qwen3-Omni-70B --dataset_name ./data/large_multimodal_dataset
    --multimodal_keys text,image,video --algorithm GSPO --train_mode fully_async --num_nodes 16 --tp_size 1 --pp_size 1
    --rollout_nodes 8 --train_nodes 8
"""
ROW = {
    "messages": [{"role": "user", "content": "<image>?"}],
    "label": "<answer>B</answer>",
    "images": [],
    "audio": [],
    "video_key": [],
}
SHORT = "--model_name_or_path m --dataset_name d.jsonl --epochs 1"


def parse(text: str, row: Mapping[str, Any] = ROW, machine: Machine | None = None) -> RunConfig:
    return parse_args(text.split(), machine=machine or Machine(), first_row=lambda spec: row)


def test_the_single_node_command_runs_with_exactly_its_ten_flags() -> None:
    config = parse(SINGLE_NODE, machine=Machine(gpus=16, sglang=True))
    assert config.checkpoint.hf_checkpoint == config.checkpoint.ref_load == "Qwen/Qwen3-Omni-30B"
    assert config.data.prompt_data == "./data/multimodal_dataset"
    assert config.data.multimodal_keys == {"image": "images", "audio": "audio", "video": "video_key"}
    assert config.algorithm.advantage_estimator == "grpo"
    assert (config.mode, config.cluster.max_staleness) == ("fully_async", 1)
    assert (config.num_engines, config.resource["rollout"].gpus, config.resource["actor"].gpus) == (8, 8, 8)
    assert (config.train.micro_batch_size, config.rollout.num_epoch, config.rollout.num_rollout) == (4, 10, None)
    assert config.checkpoint.save == config.checkpoint.load == "./checkpoints/relax_qwen3_omni"
    assert config.logging.tb_project_name == "./checkpoints/relax_qwen3_omni/tensorboard"
    assert (config.logging.use_wandb, config.logging.use_tensorboard) == (True, True)


def test_what_the_ten_flags_leave_open_is_found_in_the_data() -> None:  # C12
    config = parse(SINGLE_NODE)
    assert (config.data.input_key, config.data.label_key) == ("messages", "label")
    assert config.data.apply_chat_template
    assert config.reward.rm_type == "multiple_choice"
    assert (config.rollout.rollout_batch_size, config.rollout.n_samples_per_prompt) == (32, 8)
    assert config.origin("rm_type") == config.origin("input_key") == "derived"


def test_each_alias_is_remembered() -> None:
    config = parse(SINGLE_NODE)
    origins = {
        "hf_checkpoint": "alias --model_name_or_path",
        "fully_async": "alias --train_mode",
        "max_staleness": "alias --train_mode",
        "rollout_num_gpus": "alias --num_rollouts",
        "num_epoch": "alias --epochs",
        "save": "alias --output_dir",
        "use_wandb": "alias --report_to",
        "rollout_batch_size": "alias form",
    }
    assert {name: config.origin(name) for name in origins} == origins


def test_the_cluster_command_gives_each_side_its_nodes() -> None:
    config = parse(CLUSTER, machine=Machine(gpus=8, sglang=True))
    assert (config.resource["actor"].gpus, config.resource["rollout"].gpus) == (64, 64)
    assert (config.cluster.actor_num_nodes, config.cluster.actor_num_gpus_per_node) == (8, 8)
    assert config.origin("resource") == "alias --num_nodes, advantages derived"


def test_the_cluster_command_trains_by_gspo() -> None:
    config = parse(CLUSTER, machine=Machine(gpus=8, sglang=True))
    assert config.checkpoint.hf_checkpoint == "Qwen/Qwen3-Omni-70B"
    assert config.data.prompt_data == "./data/large_multimodal_dataset"
    assert config.data.multimodal_keys == {"image": "images", "video": "video_key"}
    assert (config.algorithm.advantage_estimator, config.algorithm.loss_reduction) == ("gspo", "sample_mean")


def test_parallel_sizes_become_megatron_flags() -> None:
    both = parse(f"{SHORT} --tp_size 8 --pp_size 4").external
    assert (both.megatron("tensor-model-parallel-size"), both.megatron("pipeline-model-parallel-size")) == (8, 4)
    assert parse(f"{SHORT} --tp_size 1").external.megatron("tensor-model-parallel-size") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--train_nodes 8 --rollout_nodes 9 --num_nodes 16", "= 17 nodes, more than --num_nodes 16"),
        ("--train_nodes 8", "give --train_nodes and --rollout_nodes"),
        ("--num_nodes 1", "give --train_nodes and --rollout_nodes"),
        ("--vit_tp_size 2", "--vit_tp_size other than --tp_size is known but not available"),
        ("--algorithm Distillation", "--use-opd needs a teacher: add --teacher-hf-checkpoint"),
        ("--algorithm XYZ", "--algorithm: must be one of grpo, dr_grpo, gspo"),
        ("--train_mode sync", "--train_mode: must be colocate or fully_async, got 'sync'"),
        ("--report_to mlflow", "--report_to: must be a list of wandb, tensorboard, clearml or none"),
        ("--multimodal_keys text,smell", "a list of text, image, audio, video, got 'text,smell'"),
        ("--num_rollouts 0", "--num_rollouts: must be >= 1, got 0"),
        (
            "--micro_batch_size 2 --micro-batch-size 4",
            "--micro_batch_size means --micro-batch-size 2, but --micro-batch-size 4",
        ),
    ],
)
def test_a_wrong_alias_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"{SHORT} {text}")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("spelling", "name"), [("GSPO", "gspo"), ("SAPO", "sapo"), ("GRPO", "grpo"), ("gspo", "gspo")]
)
def test_an_algorithm_is_named_in_any_case(spelling: str, name: str) -> None:
    config = parse(f"{SHORT} --algorithm {spelling}")
    assert (config.algorithm.advantage_estimator, config.origin("advantage_estimator")) == (name, "alias --algorithm")


@pytest.mark.parametrize("spelling", ["Distillation", "distillation"])
def test_distillation_is_a_teacher_on_top_of_grpo(spelling: str) -> None:  # C5
    config = parse(f"{SHORT} --algorithm {spelling} --teacher-hf-checkpoint teacher")
    assert (config.algorithm.advantage_estimator, config.distillation.use_opd) == ("grpo", True)
    assert config.origin("use_opd") == "alias --algorithm"
    assert config.distillation.opd_type == "sglang"
    assert config.resource["teacher"].gpus == 1


def test_the_number_of_engines_is_said_to_be_no_number_of_rounds() -> None:
    text = "--num_rollouts is the number of inference engines (3); --num-rollout is that of rounds"
    assert text in parse(f"{SHORT} --num_rollouts 3").notes


def test_colocate_is_strictly_on_policy() -> None:  # C6
    config = parse(f"{SHORT} --train_mode colocate")
    assert (config.mode, config.cluster.colocate, config.cluster.max_staleness) == ("colocate", True, 0)
    with pytest.raises(ConfigError, match="--train_mode means --max-staleness 0, but --max-staleness 1 is given too"):
        parse(f"{SHORT} --train_mode colocate --max-staleness 1")


def test_a_given_staleness_wins_over_the_one_of_the_mode() -> None:
    assert parse(f"{SHORT} --train_mode fully_async --max-staleness 3").cluster.max_staleness == 3


def test_explicit_folders_win_over_the_output_folder() -> None:  # C9
    config = parse(f"{SHORT} --output_dir out --load elsewhere")
    assert (config.checkpoint.save, config.checkpoint.load) == ("out", "elsewhere")


def test_reporters_are_added_and_none_switches_off() -> None:  # C10
    both = parse(f"{SHORT} --report_to wandb,clearml").logging
    none = parse(f"{SHORT} --report_to none").logging
    assert (both.use_wandb, both.use_clearml, both.use_tensorboard) == (True, True, True)
    assert (none.use_wandb, none.use_clearml, none.use_tensorboard) == (False, False, False)


def test_engines_are_counted_and_not_cards() -> None:  # C2
    config = parse(f"{SHORT} --train_mode fully_async --num_rollouts 3 --rollout-num-gpus-per-engine 2")
    assert (config.num_engines, config.resource["rollout"].gpus) == (3, 6)


@pytest.mark.parametrize("flag", ["--multimodal-keys", "--multimodal_keys"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"image":"pictures"}', {"image": "pictures"}),
        ("text,image", {"image": None}),
        ("text", {}),
    ],
)
def test_both_spellings_take_both_forms(flag: str, value: str, expected: dict) -> None:  # C3
    given = read_command_line([flag, value])
    found = given.values.get("multimodal_keys", given.aliases.get("multimodal_keys"))
    assert found == expected


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "x", "label": "1"}, "none has its name: columns are prompt, label"),
        ({"prompt": "x", "images": [], "image_key": []}, "both images and image_key could be it"),
    ],
)
def test_an_open_media_column_is_an_error_that_lists_the_columns(row: dict, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"{SHORT} --multimodal_keys image", row)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("label", "reward"),
    [
        ("42", "math"),
        ("-1,234.5", "math"),
        ("<answer>C</answer>", "multiple_choice"),
        ("<answer>x + 1</answer>", "openr1mm"),
    ],
)
def test_the_reward_follows_from_the_label_in_the_alias_form(label: str, reward: str) -> None:
    assert parse(SHORT, {"prompt": "x", "label": label}).reward.rm_type == reward


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "x", "label": "a long story"}, "no reward can be inferred from the label 'a long story'"),
        ({"prompt": "x"}, "no reward is given and no column looks like a label"),
        ({"text": "x", "label": "1"}, "no column looks like the prompt: the data has text, label"),
    ],
)
def test_what_cannot_be_found_is_asked_for(row: dict, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SHORT, row)
    assert problem in str(caught.value)


def test_a_reward_is_never_inferred_in_the_canonical_form() -> None:
    text = "--hf-checkpoint m --prompt-data d.jsonl --num-epoch 1 --rollout-batch-size 4 --n-samples-per-prompt 2"
    assert parse(text).reward.rm_type is None
