# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What is allowed and worth knowing: notes for `--dry-run` and the log. Nothing here stops a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relax.config import supervised
from relax.config.flags import option_name

if TYPE_CHECKING:
    from relax.config.run import RunConfig

# {flag: what it needs to have an effect}: (flag or flags, one of which must be on)
NEEDS: dict[str, tuple[str, ...]] = {
    "tis_clip": ("use_tis",),
    "tis_clip_low": ("use_tis",),
    "tis_mode": ("use_tis",),
    "custom_tis_function_path": ("use_tis", "get_mismatch_metrics"),
    "opsm_delta": ("use_opsm",),
    "kl_loss_type": ("use_kl_loss", "kl_coef"),
    "use_unbiased_kl": ("use_kl_loss", "kl_coef"),
    "streaming_buffer_size": ("use_streaming_dataset",),
    "prefetch_chunk_size": ("use_streaming_dataset",),
    "prefetch_max_cached": ("use_streaming_dataset",),
    "prefetch_num_workers": ("use_streaming_dataset",),
    "apply_chat_template_kwargs": ("apply_chat_template",),
    "chat_template": ("apply_chat_template",),
    **dict.fromkeys(
        (
            "wandb_project",
            "wandb_dir",
            "wandb_mode",
            "wandb_host",
            "wandb_team",
            "wandb_group",
            "wandb_run_id",
        ),
        ("use_wandb",),
    ),
    "tb_project_name": ("use_tensorboard", "use_clearml"),
    "tb_experiment_name": ("use_tensorboard", "use_wandb", "use_clearml"),
    "teacher_hf_checkpoint": ("use_opd",),
    "log_passrate": ("eval_interval",),
    "partial_rollout_max_aborted_count": ("partial_rollout",),
    "mask_offpolicy_in_partial_rollout": ("partial_rollout",),
    "log_probs_max_tokens_per_gpu": ("use_dynamic_batch_size",),
    "rm_url": ("rm_type",),
    "serve_port": ("serve_http",),
    "serve_host": ("serve_http",),
}


def notes(config: RunConfig) -> Iterator[str]:
    """One line each."""
    if config.is_supervised:
        yield from supervised.notes(config)
        return
    yield from _without_effect(config)
    yield from _off_policy(config)
    yield from _unused_roles(config)
    yield from _batches(config)
    yield from _engines(config)
    yield from _distillation(config)
    if config.lora.lora_rank and not (config.lora.lora_merge_mode or config.lora.lora_adapter_mode):
        yield "--lora-rank without --lora-merge-mode or --lora-adapter-mode: engines and exports get merged weights"


def _without_effect(config: RunConfig) -> Iterator[str]:
    for name, needed in NEEDS.items():
        given = config.origins.get(name) == "flag"
        if given and config.value(name) not in (None, False) and not any(config.value(flag) for flag in needed):
            yield f"{option_name(name)} has no effect without {' or '.join(map(option_name, needed))}"
    if config.optimizer.lr_decay_style == "constant":
        for name in ("min_lr", "lr_decay_iters"):
            if config.origins.get(name) == "flag" and config.value(name):
                yield f"{option_name(name)} has no effect with --lr-decay-style constant"
    if config.train.use_dynamic_batch_size and config.origins.get("micro_batch_size"):
        size = config.train.micro_batch_size
        yield f"--micro-batch-size {size} is ignored: --use-dynamic-batch-size packs by tokens"


def _off_policy(config: RunConfig) -> Iterator[str]:
    stale, corrected = config.cluster.max_staleness > 0, config.algorithm.use_tis
    if stale and config.old_log_probs != "rollout" and not corrected:
        yield (
            f"samples may be {config.cluster.max_staleness} rollouts old and nothing corrects for it: old log-probs "
            "are the trainer's and --use-tis is off; add --use-tis, or take the engines' by --use-rollout-logprobs"
        )
    if config.old_log_probs == "current" and config.steps_per_rollout > 1:
        yield (
            f"--true-on-policy-mode keeps the ratio at 1 over all {config.steps_per_rollout} steps of a rollout, "
            "though only the first is on-policy"
        )


def _unused_roles(config: RunConfig) -> Iterator[str]:
    roles = config.resource
    if "reference" in roles and not config.uses_kl:
        yield 'the "reference" in --resource computes nothing: no KL term is on'
    if "actor_fwd" in roles and config.old_log_probs != "old":
        yield f'the "actor_fwd" in --resource computes nothing: old log-probs are {config.old_log_probs}'


def _batches(config: RunConfig) -> Iterator[str]:
    filtered = config.rollout.dynamic_sampling_filter_path is not None
    if config.over_sampling_surplus > 0 and not filtered and not config.overlaps:
        yield "--over-sampling-batch-size without a filter: surplus groups of each round are generated and dropped"
    if config.global_batch_size < config.data_parallel_size:
        batch = config.train.global_batch_size
        yield f"{config.data_parallel_size} training ranks share {batch} samples: some stay idle"
    reward = config.reward
    if reward.rm_type is not None and reward.custom_rm_path is not None:
        yield f"--rm-type {reward.rm_type} is not used: --custom-rm-path {reward.custom_rm_path} scores every sample"
    if not (reward.rm_type or reward.custom_rm_path or reward.rm_type_infer or reward.rm_type_fallback):
        yield "no reward flag is given: each row's metadata must name its rm_type, or the generate function must score"


def _distillation(config: RunConfig) -> Iterator[str]:
    opd = config.distillation
    if opd.use_opd and opd.opd_kl_coef and opd.opd_kl_type == "low_var_kl":
        yield (
            "--opd-kl-type low_var_kl in the advantages has the expected gradient of KL(p, q) - KL(q, p), which is "
            "nothing near the teacher: use reverse_kl, or --opd-loss-coef"
        )


def _engines(config: RunConfig) -> Iterator[str]:
    if config.origin("rollout_num_gpus") == "alias --num_rollouts":
        engines = config.num_engines
        yield f"--num_rollouts is the number of inference engines ({engines}); --num-rollout is that of rounds"
    if config.rollout.sglang_python is not None and config.rollout.rollout_backend != "sglang":
        yield "--sglang-python has no effect with --rollout-backend native"
    aborts = config.lora.lora_adapter_mode and config.rollout.rollout_backend == "sglang" and config.mode != "colocate"
    if aborts and not config.rollout.partial_rollout:
        yield (
            "--lora-adapter-mode with SGLang: each version aborts the requests that run, and they are generated again "
            "from the start: add --partial-rollout, which continues them"
        )
    if config.rollout.rollout_dtype != config.train.train_dtype:
        yield (
            f"engines compute in {config.rollout.rollout_dtype} and the trainer in {config.train.train_dtype}: "
            "their log-probs will differ"
        )
