# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF009 (`flag` makes a dataclass field)
"""Supervised fine-tuning: what is trained on and how rows reach the trainer."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag, import_path
from relax.config.frozen import FrozenDict

OVERSIZE_STRATEGIES = ("keep", "skip", "truncate_left", "truncate_right", "custom")


@dataclass(frozen=True, kw_only=True)
class SftConfig(Section):
    """Flags of --loss-type sft, dpo and reward_model; one rollout id is one optimizer step there."""

    eval_size: float | None = flag(
        None,
        help="Rows of --prompt-data that are held out for evaluation: below 1 a share, from 1 on a number. One random "
        "split by --seed.",
        check=above(0),
    )
    sft_predict_interval: int | None = flag(
        None,
        help="Steps between two generative predictions on the evaluation rows; raises the rollout role and writes "
        "<save>/predict/predictions_step_<rollout_id>.jsonl.",
        check=at_least(1),
        shown="never",
    )
    sft_training_mode: str = flag(
        "sft",
        choices=("sft", "cpt"),
        help="sft trains the assistant's tokens of rendered dialogues; cpt (continued pre-training) whole texts.",
    )
    sft_cpt_template: str = flag(
        "raw", choices=("raw", "qwen3_5"), help="What stands around the text of a row with --sft-training-mode cpt."
    )
    conversation_key_map: FrozenDict = flag(
        FrozenDict(),
        help='What message fields and roles of the data are called here: {"from": "role", "human": "user", ...}.',
    )
    custom_dataset_class_path: str | None = flag(
        None,
        help="Class that gives the rows in place of the files' own reader; rows are then produced by one local "
        "producer.",
        check=import_path,
    )
    custom_dataset_class: str | None = flag(None, help="Short name of --custom-dataset-class-path.", check=import_path)
    sft_oversize_strategy: str = flag(
        "keep",
        choices=OVERSIZE_STRATEGIES,
        help="What a sample above --max-tokens-per-gpu x --context-parallel-size does: it makes a micro-batch of its "
        "own, is left out, loses its start or its end, or goes through a function of yours.",
    )
    sft_oversize_custom_function_path: str | None = flag(
        None, help="Function of --sft-oversize-strategy custom.", check=import_path
    )
    sft_invalid_multimodal_strategy: str = flag(
        "error", choices=("error", "skip"), help="A row whose media cannot be read ends the run, or is left out."
    )
    sft_chunked_logits: bool = flag(False, help="Take --sft-logits-chunk-size in place of --log-probs-chunk-size.")
    sft_logits_chunk_size: int = flag(
        1024, help="Rows of logits that exist at a time with --sft-chunked-logits.", check=at_least(1)
    )
    sft_max_in_flight_steps: int = flag(
        1,
        help="Steps that are produced and not trained yet; 1 produces a step when the one before is trained. "
        "--max-staleness + 1 counts where it is larger.",
        check=at_least(1),
    )
    sft_prefetch_buffer_size: int = flag(
        256, help="Rendered samples that a producer keeps ahead of the step it is at; 0 keeps none.", check=at_least(0)
    )
    sft_prefetch_chunk_size: int = flag(
        32, help="Samples that one prefetch worker renders at a time.", check=at_least(1)
    )
    sft_prefetch_num_workers: int = flag(
        4,
        help="Workers of a producer that render samples: threads, or processes with --mm-processor-pool-size.",
        check=at_least(1),
    )
    sft_async_prepack: bool = flag(
        False,
        help="The producer lays out each rank's micro-batches ahead of the trainer, one row a rank; without it a rank "
        "takes its share out of the samples of the step. Needs --per-rank-fetch and at least 2 steps in flight.",
    )
    sft_tq_shards: int | None = flag(
        None,
        help="Partitions, and producers where possible, of one step with --sft-async-prepack.",
        check=at_least(1),
        shown="the environment variable RELAX_SFT_TQ_SHARDS, else 1",
    )
    sft_tq_timeout_minutes: float = flag(
        30.0, help="Longest wait of a rank for the rows of a step, in minutes.", check=above(0)
    )
    per_rank_fetch: bool = flag(
        False,
        help="Every training rank reads its samples from the bus itself (raise --num-data-storage-units with it); "
        "without it rank 0 reads for all.",
    )
    balance_data: bool | None = flag(
        None,
        help="Deal samples to micro-batches and ranks so that all have about equally many tokens.",
        shown="on with --loss-type sft",
    )
