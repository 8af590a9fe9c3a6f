# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Combinations of heads, preference losses, adapters and MTP that are refused, with the words that fix them."""

import sys

import pytest

from relax.config.run import default_config
from relax.utils.errors import ConfigError

SGLANG = {"rollout_backend": "sglang", "sglang_python": sys.executable}
CLASSES = {
    "task_type": "seq_cls",
    "num_labels": 3,
    "problem_type": "single_label_classification",
    "label_key": "label",
}


def refused(**flags) -> str:
    with pytest.raises(ConfigError) as error:
        default_config(**flags)
    return str(error.value)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"fully_async": True}, "--fully-async: it trains synchronously"),
        ({"hybrid": True}, "--hybrid: it trains synchronously"),
        ({"save_hf": "out", "save": "run"}, "--save-hf: export a checkpoint offline"),
        ({"enable_mtp_training": True, "mtp_num_layers": 1}, "--enable-mtp-training: a head for classes predicts"),
        ({"enable_mtp_training": True, "mtp_num_layers": 1}, "--mtp-num-layers: a head for classes predicts"),
        ({"multimodal_keys": {"image": "images"}}, "--multimodal-keys: it reads text alone"),
    ],
)
def test_classification_names_what_it_does_not_support(flags, name):
    assert f"--task-type seq_cls does not support {name}" in refused(**CLASSES, **flags)


SFT = {
    "loss_type": "sft",
    "use_dynamic_batch_size": True,
    "max_tokens_per_gpu": 64,
    "num_epoch": 1,
    "num_rollout": None,
    "rollout_batch_size": None,
    "n_samples_per_prompt": 1,
    "rm_type": None,
    "global_batch_size": 4,
}
PREDICT = {"sft_predict_interval": 5, "save": "run", "eval_size": 2.0, "eval_interval": 5}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (PREDICT, "--sft-predict-interval: a head for classes generates no text"),
        ({"sft_chunked_logits": True}, "--sft-chunked-logits: there are no logits over a vocabulary"),
        ({"fully_async": True}, "--fully-async: it trains synchronously"),
        ({"hybrid": True}, "--hybrid: it trains synchronously"),
        ({"save_hf": "out", "save": "run"}, "--save-hf: export a checkpoint offline"),
    ],
)
def test_a_supervised_run_of_classes_names_what_it_does_not_support(flags, name):
    assert default_config(**SFT, **CLASSES).task.num_labels == 3
    assert f"--task-type seq_cls does not support {name}" in refused(**SFT, **CLASSES, **flags)


@pytest.mark.parametrize("loss", ["dpo", "reward_model"])
@pytest.mark.parametrize(
    "flags",
    [PREDICT, {"enable_mtp_training": True, "mtp_num_layers": 1}, {"fully_async": True}, {"hybrid": True}],
)
def test_preferences_name_what_they_do_not_support(loss, flags):
    assert f"--loss-type {loss} does not support --{next(iter(flags)).replace('_', '-')}: leave it out" in refused(
        **SFT | {"loss_type": loss}, **flags
    )


def test_a_reward_model_is_exported_whole():
    flags = {"loss_type": "reward_model", "lora_rank": 4, "lora_adapter_mode": True, "save_hf": "out", "save": "run"}
    assert "an adapter alone is no reward model" in refused(**SFT | flags)
    assert default_config(**SFT | {"lora_rank": 4, "lora_adapter_mode": True}).lora.lora_adapter_mode


def test_classification_needs_its_classes_and_its_loss():
    text = refused(task_type="seq_cls")
    assert "--task-type seq_cls needs --num-labels: the number of classes" in text
    assert "needs --problem-type: single_label_classification or multi_label_classification" in text
    assert "--task-type seq_cls needs --loss-type sft, not policy_loss" in text
    assert "--task-type seq_cls needs --label-key" in text
    assert "a binary task has 2 classes" in refused(**CLASSES | {"num_labels": 1})
    assert "--num-labels 3 has no effect without --task-type seq_cls" in refused(num_labels=3)
    assert "--classification-threshold must be > 0 and < 1, got 1.5" in refused(classification_threshold=1.5)
    assert "--problem-type must be one of" in refused(**CLASSES | {"problem_type": "regression"})


def test_flags_of_dpo_alone_have_no_effect():
    assert "--dpo-beta has no effect without --loss-type dpo" in refused(dpo_beta=0.5)
    assert "--dpo-reference-free has no effect without --loss-type dpo" in refused(dpo_reference_free=True)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"lora_merge_mode": True, "lora_adapter_mode": True}, "exclude each other: keep one"),
        (
            {"lora_adapter_mode": True, **SGLANG, "lora_target_modules": ("linear_qkv", "in_proj")},
            "--lora-adapter-mode: SGLang has no adapters on in_proj; use --lora-merge-mode",
        ),
        (
            {"lora_adapter_mode": True, **SGLANG, "checkpoint_engine_backend": "gloo"},
            "SGLang takes adapters from folders: leave --checkpoint-engine-backend gloo out",
        ),
        (
            {"lora_adapter_mode": True, "train_dtype": "fp32", "rollout_dtype": "bf16"},
            "engines would add the adapter to matrices in bf16, the trainer in fp32: leave --rollout-dtype out",
        ),
        (
            {"lora_adapter_mode": True, "hf_checkpoint": "a", "ref_load": "b"},
            "engines start from --hf-checkpoint a and training from --ref-load b: give both one folder",
        ),
        ({"lora_target_modules": ("router",)}, "--lora-target-modules router needs --lora-adapter-mode"),
        ({"lora_target_modules": ("linear_qkv", "linear_qkv")}, "names a module twice"),
    ],
)
def test_adapters_that_cannot_be(flags, text):
    assert text in refused(lora_rank=8, **flags)


@pytest.mark.parametrize("name", ["lora_merge_mode", "lora_adapter_mode", "save_lora_only"])
def test_adapter_flags_without_a_rank_have_no_effect(name):
    assert f"--{name.replace('_', '-')} has no effect without --lora-rank" in refused(**{name: True})


def test_values_of_adapters_are_checked():
    assert "--lora-alpha has no effect without --lora-rank" in refused(lora_alpha=16.0)
    assert "--lora-dropout must be >= 0 and < 1" in refused(lora_rank=4, lora_dropout=1.0)
    assert "--lora-target-modules must be one of linear_qkv" in refused(lora_rank=4, lora_target_modules=("q_proj",))
    config = default_config(lora_rank=32, lora_alpha=64.0, lora_merge_mode=True)
    assert default_config(lora_rank=4, lora_adapter_mode=True).lora.lora_adapter_mode
    assert (config.lora.lora_target_modules, config.lora.lora_scope) == (("linear_qkv", "linear_proj"), "all")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"enable_mtp_training": True}, "--enable-mtp-training needs --mtp-num-layers"),
        ({"mtp_num_layers": 1}, "--mtp-num-layers has no effect without --enable-mtp-training"),
        ({"mtp_only_training": True, "mtp_num_layers": 1}, "--mtp-only-training needs --enable-mtp-training: add it"),
        (
            {"enable_mtp_training": True, "mtp_num_layers": 1, "mtp_only_training": True},
            "--mtp-only-training needs --loss-type sft, not policy_loss",
        ),
        (
            {"enable_mtp_training": True, "mtp_num_layers": 2, "mtp_only_training": True},
            "--mtp-only-training trains one layer: --mtp-num-layers must be 1, not 2",
        ),
        (
            {"enable_mtp_training": True, "mtp_num_layers": 1, "mtp_detach_paths": ("none", "backbone")},
            "--mtp-detach-paths none stands alone",
        ),
    ],
)
def test_mtp_that_cannot_be(flags, text):
    assert text in refused(**flags)


def test_mtp_detaches_everything_by_default_and_scales_by_a_fifth():
    config = default_config(enable_mtp_training=True, mtp_num_layers=1)
    assert config.mtp.mtp_detach_paths == ("embedding", "backbone", "lm-head")
    assert config.mtp.mtp_loss_scaling_factor == 0.2
