# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From flags to what a model is trained with besides its folder, and to the options of a supervised loss. No torch."""

from __future__ import annotations

import dataclasses

from relax.algorithms.supervised.options import SupervisedOptions
from relax.backends.additions import HEAD_TYPE_REWARD, ClassHead, LoraSpec, MtpSpec
from relax.config.run import RunConfig


def supervised_options(config: RunConfig) -> SupervisedOptions:
    """Of a run whose --loss-type is supervised."""
    names = {f.name for f in dataclasses.fields(SupervisedOptions)} & set(dir(config.task))
    loss_type = config.algorithm.loss_type
    return SupervisedOptions(
        **{name: getattr(config.task, name) for name in names},
        loss_type="sft" if loss_type in ("sft_loss", "sft-loss") else loss_type,
        mtp_loss_scaling_factor=mtp_scale(config),
        mtp_only_training=config.mtp.mtp_only_training,
    )


def mtp_scale(config: RunConfig) -> float | None:
    """Weight of the MTP loss; None without MTP training."""
    return config.mtp.mtp_loss_scaling_factor if config.mtp.enable_mtp_training else None


def class_head(config: RunConfig) -> ClassHead | None:
    if config.algorithm.loss_type == "reward_model":
        return ClassHead(1, seed=config.train.seed, head_type=HEAD_TYPE_REWARD)
    task = config.task
    if task.task_type != "seq_cls" or task.num_labels is None:
        return None
    return ClassHead(task.num_labels, task.problem_type, config.train.seed)


def lora_spec(config: RunConfig) -> LoraSpec | None:
    section = config.lora
    if section.lora_rank == 0:
        return None
    return LoraSpec(
        rank=section.lora_rank,
        alpha=section.lora_alpha,
        targets=section.lora_target_modules,
        scope=section.lora_scope,
        dropout=section.lora_dropout,
        seed=config.train.seed,
        export_merged=not section.lora_adapter_mode,
        save_adapter_only=section.save_lora_only,
    )


def publishes_adapter(config: RunConfig) -> bool:
    """Versions hold the adapter alone. Predictions of supervised training get merged weights in either mode."""
    return config.lora.lora_adapter_mode and config.algorithm.loss_type == "policy_loss"


def asks_adapter(config: RunConfig) -> bool:
    """Requests name the adapter: the engine keeps it beside the model instead of merging it."""
    return publishes_adapter(config) and config.rollout.rollout_backend == "sglang"


def mtp_spec(config: RunConfig) -> MtpSpec | None:
    section = config.mtp
    if not section.enable_mtp_training:
        return None
    paths = tuple(path for path in section.mtp_detach_paths if path != "none")
    return MtpSpec(section.mtp_num_layers or 1, paths, section.mtp_only_training)
