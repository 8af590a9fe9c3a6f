# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rules of heads, preference losses, adapters and MTP. See `relax.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from relax.config.command_line import SECTION_OF
from relax.config.flags import option_name

if TYPE_CHECKING:
    from relax.config.run import RunConfig

SFT = ("sft", "sft_loss", "sft-loss")
PAIRS = ("dpo", "reward_model")

# What classification cannot be combined with: {flag: why}.
_NOT_WITH_CLASSES = {
    "fully_async": "it trains synchronously",
    "hybrid": "it trains synchronously",
    "sft_predict_interval": "a head for classes generates no text; --eval-interval tells loss and metrics",
    "enable_mtp_training": "a head for classes predicts no token",
    "mtp_num_layers": "a head for classes predicts no token",
    "mtp_only_training": "a head for classes predicts no token",
    "sft_chunked_logits": "there are no logits over a vocabulary to cut into chunks",
    "save_hf": "export a checkpoint offline by examples/seq_cls_sft/tools/export_classifier.py",
    "multimodal_keys": "it reads text alone",
}


def given(config: RunConfig, name: str) -> Any:
    """The value of a flag where it is set to something, else None."""
    value = config.value(name) if name in SECTION_OF else None
    return value if value else None


def classification(config: RunConfig) -> Iterator[str]:
    task = config.task
    if task.task_type != "seq_cls":
        for name in ("num_labels", "problem_type"):
            if given(config, name) is not None:
                yield f"{option_name(name)} {config.value(name)} has no effect without --task-type seq_cls: add it"
        return
    if config.algorithm.loss_type not in SFT:
        yield f"--task-type seq_cls needs --loss-type sft, not {config.algorithm.loss_type}"
    if task.num_labels is None:
        yield "--task-type seq_cls needs --num-labels: the number of classes"
    if task.problem_type is None:
        yield "--task-type seq_cls needs --problem-type: single_label_classification or multi_label_classification"
    elif task.problem_type.startswith("single") and task.num_labels == 1:
        yield "--num-labels 1 leaves nothing to tell apart: a binary task has 2 classes"
    for name, why in _NOT_WITH_CLASSES.items():
        if given(config, name) is not None:
            yield f"--task-type seq_cls does not support {option_name(name)}: {why}; leave it out"
    if config.value("label_key") is None:
        yield "--task-type seq_cls needs --label-key: the column with a class index, or a list of them"


def preferences(config: RunConfig) -> Iterator[str]:
    loss = config.algorithm.loss_type
    if loss != "dpo":
        for name in ("dpo_beta", "dpo_reference_free"):
            if config.value(name) != config.usual_value(name):
                yield f"{option_name(name)} has no effect without --loss-type dpo: add it, or leave the flag out"
    if loss not in PAIRS:
        return
    for name in ("fully_async", "hybrid", "enable_mtp_training", "mtp_only_training", "sft_predict_interval"):
        if given(config, name) is not None:
            yield f"--loss-type {loss} does not support {option_name(name)}: leave it out"
    if loss == "reward_model" and given(config, "save_hf") is not None and given(config, "lora_adapter_mode"):
        yield "--loss-type reward_model with --lora-adapter-mode: an adapter alone is no reward model; drop --save-hf"
    for axis in ("tensor-model-parallel-size", "context-parallel-size", "pipeline-model-parallel-size"):
        size = config.external.megatron(axis, 1)
        if size > 1:
            yield f"--loss-type {loss} compares whole answers: --{axis} must be 1, not {size}"


def lora(config: RunConfig) -> Iterator[str]:
    section = config.lora
    if section.lora_rank == 0:
        on = [name for name in ("lora_merge_mode", "lora_adapter_mode", "save_lora_only") if given(config, name)]
        changed = [
            name
            for name in ("lora_alpha", "lora_target_modules", "lora_scope", "lora_dropout")
            if config.value(name) != config.usual_value(name)
        ]
        for name in (*on, *changed):
            yield f"{option_name(name)} has no effect without --lora-rank: give a rank such as 16, or leave it out"
        return
    if section.lora_merge_mode and section.lora_adapter_mode:
        yield "--lora-merge-mode and --lora-adapter-mode exclude each other: keep one"
    if section.lora_adapter_mode and config.algorithm.loss_type == "policy_loss":
        yield from _adapter_alone(config)
    if "router" in section.lora_target_modules and not section.lora_adapter_mode:
        yield "--lora-target-modules router needs --lora-adapter-mode: a router is not merged"
    if len(set(section.lora_target_modules)) != len(section.lora_target_modules):
        yield "--lora-target-modules names a module twice"


def _adapter_alone(config: RunConfig) -> Iterator[str]:
    """The engine adds the adapter to the matrices that it has loaded, so they must be the trainer's."""
    checkpoint, rollout, why = config.checkpoint, config.rollout, "use --lora-merge-mode, which sends merged weights"
    if rollout.rollout_backend == "sglang":
        others = sorted(set(config.lora.lora_target_modules) & {"router", "in_proj", "out_proj"})
        if others:
            yield f"--lora-adapter-mode: SGLang has no adapters on {' '.join(others)}; {why}"
        if config.cluster.checkpoint_engine_backend != "shm":
            yield (
                "--lora-adapter-mode: SGLang takes adapters from folders: leave "
                f"--checkpoint-engine-backend {config.cluster.checkpoint_engine_backend} out, or {why}"
            )
    if rollout.rollout_dtype != config.train.train_dtype:
        yield (
            f"--lora-adapter-mode: engines would add the adapter to matrices in {rollout.rollout_dtype}, the trainer "
            f"in {config.train.train_dtype}: leave --rollout-dtype out, or {why}"
        )
    if checkpoint.ref_load not in (None, checkpoint.hf_checkpoint):
        yield (
            f"--lora-adapter-mode: engines start from --hf-checkpoint {checkpoint.hf_checkpoint} and training from "
            f"--ref-load {checkpoint.ref_load}: give both one folder, or {why}"
        )


def mtp(config: RunConfig) -> Iterator[str]:
    section, loss = config.mtp, config.algorithm.loss_type
    training = section.enable_mtp_training or section.mtp_only_training
    if section.enable_mtp_training and section.mtp_num_layers is None:
        yield "--enable-mtp-training needs --mtp-num-layers: the MTP layers of the model, usually 1"
    if section.mtp_only_training and not section.enable_mtp_training:
        yield "--mtp-only-training needs --enable-mtp-training: add it"
    if not training:
        for name in ("mtp_num_layers", "mtp_loss_scaling_factor", "mtp_detach_paths"):
            if config.value(name) != config.usual_value(name):
                yield f"{option_name(name)} has no effect without --enable-mtp-training: add it, or leave it out"
        return
    if section.mtp_only_training and loss not in SFT:
        yield f"--mtp-only-training needs --loss-type sft, not {loss}"
    if section.mtp_only_training and (section.mtp_num_layers or 1) > 1:
        yield f"--mtp-only-training trains one layer: --mtp-num-layers must be 1, not {section.mtp_num_layers}"
    if "none" in section.mtp_detach_paths and len(section.mtp_detach_paths) > 1:
        yield "--mtp-detach-paths none stands alone: name paths, or none"
    if config.lora.lora_rank and section.mtp_only_training:
        yield "--mtp-only-training trains no adapter: leave --lora-rank out"


RULES = (classification, preferences, lora, mtp)
