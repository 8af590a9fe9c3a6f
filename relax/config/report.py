# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What `--dry-run` prints: every value with its origin, and the arithmetic from prompts to optimizer steps."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from relax.config.resources import resource_table
from relax.config.run import RunConfig
from relax.config.sections import SECTIONS


def dry_run_report(config: RunConfig, *, rows: int | None = None) -> dict[str, Any]:
    """A JSON-ready report. `rows` is the number of prompts of the data, None when it was not counted."""
    return {
        "config": {
            name: {
                flag: {"value": value, "origin": config.origin(flag)}
                for flag, value in asdict(getattr(config, name)).items()  # type: ignore[call-overload]
            }
            for name in SECTIONS
        },
        "external": [str(flag) for flag in config.external.given],
        "hooks": {key: {"value": value, "origin": "file"} for key, value in config.custom.items()},
        "eval_datasets": [asdict(dataset) for dataset in config.eval_datasets],
        "batches": batch_arithmetic(config, rows=rows),
        "run": run_facts(config, rows=rows),
        "notes": list(config.notes),
        **({"sft": supervised_facts(config, rows=rows)} if config.is_supervised else {}),
    }


def supervised_facts(config: RunConfig, *, rows: int | None = None) -> dict[str, Any]:
    """How rows flow in supervised fine-tuning, and what of them is held out."""
    sft = config.sft
    held_out = None if rows is None else config.eval_rows(rows)
    names = ["--eval-size"] if sft.eval_size is not None else [dataset.name for dataset in config.eval_datasets]
    return {
        "train_rows": None if rows is None else rows - config.eval_rows(rows),
        "held_out_rows": held_out,
        "evaluation": names,
        "predictions": None if not config.raises_rollout else f"{config.checkpoint.save}/predict/",
        "tokens_of_a_micro_batch": config.supervised_capacity,
        "longer_samples": sft.sft_oversize_strategy,
        "steps_in_flight": config.steps_in_flight,
        "rows_on_the_bus": f"{config.sft_shards * config.data_parallel_size if sft.sft_async_prepack else 1} a step",
        "shards": config.sft_shards,
        "prefetch": f"{sft.sft_prefetch_buffer_size} samples by {sft.sft_prefetch_num_workers} workers, "
        f"{sft.sft_prefetch_chunk_size} at a time",
        "loss_averaged_over": config.algorithm.loss_reduction,
    }


def batch_arithmetic(config: RunConfig, *, rows: int | None = None) -> dict[str, Any]:
    """prompts x n -> samples -> optimizer steps -> micro-batches per rank."""
    batch = config.global_batch_size
    rounds = total_rounds(config, rows)
    return {
        "prompts_per_rollout": config.rollout.rollout_batch_size,
        "samples_per_prompt": config.rollout.n_samples_per_prompt,
        "samples_per_rollout": config.samples_per_rollout,
        "samples_per_optimizer_step": batch,
        "optimizer_steps_per_rollout": config.steps_per_rollout,
        "streamed_parts_per_optimizer_step": config.cluster.num_iters_per_train_update,
        "training_ranks": config.resource["actor"].gpus,
        "data_parallel_ranks": config.data_parallel_size,
        "micro_batches_per_rank_and_step": _micro_batches(config, batch),
        "rollouts": rounds,
        "optimizer_steps": None if rounds is None else rounds * config.steps_per_rollout,
        "samples": None if rounds is None else rounds * config.samples_per_rollout,
    }


def _micro_batches(config: RunConfig, batch: int) -> int | str:
    """Micro-batches are dealt round robin over the ranks and padded, so every rank has the same number."""
    ranks = config.data_parallel_size
    if config.train.use_dynamic_batch_size:
        most = math.ceil(batch / ranks)
        return f"by length: {config.train.max_tokens_per_gpu} tokens each, at most {most}"
    return math.ceil(math.ceil(batch / config.train.micro_batch_size) / ranks)


def total_rounds(config: RunConfig, rows: int | None) -> int | None:
    """Rounds of the run, None when they depend on rows that were not counted."""
    if config.rollout.num_epoch is None:
        return config.rollout.num_rollout
    return None if rows is None else config.num_rollouts(rows)


def run_facts(config: RunConfig, *, rows: int | None = None) -> dict[str, Any]:
    """Mode, staleness, log-prob source, checkpoints and cards."""
    return {
        "mode": config.mode,
        "shares_cards": config.shares_cards and config.raises_rollout,
        "max_staleness": config.cluster.max_staleness,
        "max_open_groups": config.max_open_groups,
        "old_log_probs": None
        if config.is_supervised
        else {
            "source": config.old_log_probs,
            "meaning": _OLD_LOG_PROBS[config.old_log_probs],
            "computed_by": config.old_log_probs_role,
        },
        "reference": config.uses_kl,
        "data_rows": rows,
        "checkpoints": checkpoint_ids(config, total_rounds(config, rows)),
        "resources": resource_table(config.placed, colocate=config.shares_cards).splitlines(),
        "engines": config.num_engines,
        "backends": backends_text(config),
        "gradient_checkpointing": config.gradient_checkpointing,
        "weights": {
            "order": "--load when it holds a checkpoint, else --ref-load, which is --hf-checkpoint unless given",
            "load": config.checkpoint.load,
            "ref_load": config.checkpoint.ref_load,
        },
    }


def backends_text(config: RunConfig) -> str:
    """Which backends train and generate, and whether a flag or the machine chose them."""

    def chosen(name: str) -> str:
        return f"{config.value(name)} ({'by machine' if config.origin(name) == 'derived' else 'as asked'})"

    names = (
        "weights keep their Hugging Face names" if config.train.train_backend == "fsdp" else "weights are converted"
    )
    return (
        f"training {chosen('train_backend')} in {config.train.train_dtype}, {names}; "
        f"inference {chosen('rollout_backend')} in {config.rollout.rollout_dtype}"
    )


_OLD_LOG_PROBS = {
    "current": "the training forward itself (ratio 1)",
    "rollout": "the engines' log-probs of the sampled tokens",
    "old": "a forward pass with the weights at the start of the rollout's training",
}


def checkpoint_ids(config: RunConfig, rounds: int | None) -> dict[str, Any]:
    """How many checkpoints will be written, and after which rounds (counted from 1)."""
    interval = config.checkpoint.save_interval
    if config.checkpoint.save is None:
        return {"count": 0, "after_rollouts": []}
    if rounds is None:
        return {"count": None, "after_rollouts": f"every {interval} and the last" if interval else "the last"}
    after = sorted({*range(interval or rounds, rounds + 1, interval or rounds), rounds})
    return {"count": len(after), "after_rollouts": after}
