# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Flags to the settings of roles and engines."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from relax.config.checks import MEDIA_LIMITS
from relax.config.run import default_config
from relax.core.build import adapter_args, engine_config, media_options, model_spec, rollout_options, suppressed_ids
from relax.data.media.processing import MediaOptions
from relax.utils.errors import ConfigError
from tests.builders import build_tiny_model_folder, tiny_tokenizer


def test_the_engine_reads_media_with_the_limits_of_the_rollout_role():
    limits = {
        "image_min_tokens": 2,
        "image_max_tokens": 9,
        "video_min_tokens": 3,
        "video_max_tokens": 8,
        "video_fps": 1.5,
        "video_min_frames": 6,
        "video_max_frames": 7,
        "audio_sample_rate": 8000,
    }
    config = default_config(**limits)
    assert media_options(config) == MediaOptions(**limits)
    assert engine_config(config).media_options == media_options(config)
    named = {field.name for field in dataclasses.fields(MediaOptions)} - {"as_sglang"}
    assert set(MEDIA_LIMITS) == set(limits) == named


def test_the_trainer_reads_media_as_the_engine_does():
    sglang = default_config(rollout_backend="sglang", sglang_python=sys.executable)
    assert media_options(sglang) == MediaOptions(as_sglang=True)


def test_without_flags_the_limits_are_those_of_the_saved_processor():
    assert media_options(default_config()) == MediaOptions()


def test_sglang_is_told_the_ids_that_the_trainer_leaves_out_and_the_native_engine_finds_them(tmp_path):
    folder = build_tiny_model_folder(tmp_path, "qwen3_omni")
    python = sys.executable
    sglang = default_config(hf_checkpoint=str(folder), rollout_backend="sglang", sglang_python=python)
    ids = suppressed_ids(sglang)
    assert set(tiny_tokenizer().convert_tokens_to_ids(["<|image_pad|>", "<|audio_pad|>", "<|video_pad|>"])) <= set(ids)
    assert engine_config(sglang).suppressed_ids == ids
    assert engine_config(default_config(hf_checkpoint=str(folder))).suppressed_ids is None


def test_the_trainer_starts_from_the_reference_model_and_the_engine_from_the_checkpoint_of_its_tokenizer(tmp_path):
    folder = build_tiny_model_folder(tmp_path / "model")  # C22
    config = default_config(hf_checkpoint=str(folder), ref_load=str(tmp_path / "other"))
    assert model_spec(config, trainable=True).hf_path == tmp_path / "other"
    assert engine_config(config).model_path == folder
    alone = default_config(hf_checkpoint=str(folder))
    assert model_spec(alone, trainable=True).hf_path == model_spec(alone, trainable=False).hf_path == folder


def test_sglang_is_started_for_the_adapters_of_the_run_and_for_text_models_alone(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    flags = {"hf_checkpoint": str(tmp_path), "rollout_backend": "sglang", "lora_rank": 8}
    flags["sglang_python"] = sys.executable
    assert adapter_args(default_config(**flags, lora_merge_mode=True)) == ()
    assert adapter_args(default_config(**{**flags, "rollout_backend": "native"}, lora_adapter_mode=True)) == ()
    alone = default_config(**flags, lora_adapter_mode=True, lora_target_modules=("linear_qkv", "linear_fc2"))
    names = "q_proj k_proj v_proj down_proj"
    text = f"--enable-lora --max-lora-rank 8 --max-loras-per-batch 2 --lora-target-modules {names}"
    assert adapter_args(alone) == tuple(text.split())
    assert rollout_options(alone).lora_path == "relax_policy_lora"
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}, "text_config": {}}))
    with pytest.raises(ConfigError, match="SGLang takes adapters of text models alone"):
        adapter_args(alone)
