# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF009 (`flag` makes a dataclass field)
"""What one optimizer step is made of and how the trainer computes it."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag
from relax.config.frozen import FrozenDict


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Section):
    """Batches and the training backend."""

    train_backend: str | None = flag(
        None,
        choices=("fsdp",),
        later=("megatron",),
        help="Training backend.",
        shown="by machine; fsdp is the one that this version has",
    )
    train_dtype: str | None = flag(
        None,
        choices=("fp32", "bf16"),
        help="Type that the training forward computes in.",
        shown="bf16 with CUDA, else fp32",
    )
    global_batch_size: int | None = flag(
        None,
        help="Samples of one optimizer step.",
        check=at_least(1),
        shown="rollout_batch_size x n_samples_per_prompt / num_steps_per_rollout",
    )
    num_steps_per_rollout: int | None = flag(
        None,
        help="Optimizer steps on the samples of one rollout.",
        check=at_least(1),
        shown="rollout_batch_size x n_samples_per_prompt / global_batch_size",
    )
    micro_batch_size: int = flag(
        1, help="Samples of one forward pass on one rank; ignored with --use-dynamic-batch-size.", check=at_least(1)
    )
    use_dynamic_batch_size: bool = flag(
        False, help="Pack samples into micro-batches of up to --max-tokens-per-gpu tokens."
    )
    max_tokens_per_gpu: int | None = flag(
        None,
        help="Tokens of one micro-batch on one rank; a single longer sample makes a micro-batch of its own.",
        check=at_least(1),
    )
    log_probs_max_tokens_per_gpu: int | None = flag(
        None, help="The same for forward-only passes.", check=at_least(1), shown="max_tokens_per_gpu"
    )
    log_probs_chunk_size: int = flag(
        1024,
        help="Rows of logits that exist at a time while log-probs are computed; -1 takes all rows at once.",
        check=lambda rows: None if rows == -1 or rows > 0 else "must be -1 or > 0",
    )
    shared_prefix: bool = flag(True, help="Compute the prompt of a group once in training where the backend can.")
    true_on_policy_mode: bool | None = flag(
        None,
        help="Take the training forward itself as the old log-probs (ratio 1).",
        shown="on at --max-staleness 0 with one optimizer step a rollout",
    )
    parity_interval: int | None = flag(
        None,
        help="Rollouts between two comparisons of the engines' log-probs with the trainer's; the first is made before "
        "the first update. Each keeps --max-staleness + 1 copies of the weights in CPU memory for a while.",
        check=at_least(1),
        shown="only before the first update",
    )
    parity_limit: float = flag(
        0.1, help="Largest mean difference of engine and trainer log-probs, in nats.", check=above(0)
    )
    parity_policy: str = flag(
        "warn",
        choices=("warn", "fail"),
        help="What a difference above --parity-limit does after the first update; before it the run ends.",
    )
    megatron_to_hf_mode: str = flag(
        "bridge",
        choices=("bridge", "raw"),
        help="Weights between Hugging Face and Megatron: bridge converts by itself.",
    )
    qkv_format: str = flag(
        "thd",
        choices=("thd",),
        later=("bshd",),
        help="Layout of training batches: thd packs sequences without padding.",
    )
    train_env_vars: FrozenDict = flag(FrozenDict(), help="Environment of the training processes as JSON.")
    seed: int = flag(1234, help="Seed of everything that training draws.", check=at_least(0))
