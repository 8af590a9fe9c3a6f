# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From a configuration to the roles of supervised fine-tuning. Runs in the process that hosts the role."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relax.backends.base import ModelSpec, OptimizerSpec
from relax.components.sft_messages import PRODUCERS, SftData
from relax.components.sft_order import RowOrder, ShardOrder
from relax.config.run import RunConfig
from relax.config.supervised import EVAL_SPLIT
from relax.core.build import (
    InProcess,
    Wiring,
    batch_settings,
    build_publisher,
    media_options,
    model_spec,
    optimizer_spec,
    train_backend,
)
from relax.core.model_parts import supervised_options
from relax.distributed.bus.base import Bus
from relax.distributed.bus.factory import make_bus
from relax.schedule.clock import RealClock

if TYPE_CHECKING:
    from relax.components.sft_render import EvalRows, SftRenderer
    from relax.engine.sft.dataset.options import SftDataOptions


def build_sft_bus(config: RunConfig, wiring: Wiring, shared: InProcess | None) -> Bus:
    return shared.bus if shared else make_bus("transfer_queue", PRODUCERS, attachment=wiring.bus_attachment)


def data_options(config: RunConfig, files: str, flag: str = "--prompt-data", **keys: Any) -> SftDataOptions:
    """How rows of `files` become examples. Evaluation sets may have columns of their own."""
    from relax.core.rollout_parts import chat_template
    from relax.engine.sft.dataset.options import SftDataOptions

    data, sft = config.data, config.sft
    columns = {"input_key": data.input_key, "label_key": data.label_key, "tool_key": data.tool_key}
    return SftDataOptions(
        files=files,
        model=str(config.checkpoint.hf_checkpoint),
        files_flag=flag,
        **(columns | keys),
        metadata_key=data.metadata_key,
        multimodal_keys=data.multimodal_keys,
        conversation_key_map=sft.conversation_key_map,
        system_prompt=data.system_prompt,
        custom_prompt_path=data.custom_prompt_path,
        chat_template=chat_template(config),
        task_type=config.task.task_type,  # type: ignore[arg-type]
        **_classes(config),
        training_mode="preference" if supervised_options(config).pairs else sft.sft_training_mode,  # type: ignore[arg-type]
        cpt_template=sft.sft_cpt_template,  # type: ignore[arg-type]
        apply_chat_template_kwargs=data.apply_chat_template_kwargs,
        max_tokens=config.supervised_capacity,
        oversize_strategy=sft.sft_oversize_strategy,  # type: ignore[arg-type]
        oversize_custom_function_path=sft.sft_oversize_custom_function_path,
        invalid_multimodal_strategy=sft.sft_invalid_multimodal_strategy,  # type: ignore[arg-type]
        media=media_options(config),
    )


def _classes(config: RunConfig) -> dict[str, Any]:
    """Of --task-type seq_cls; other tasks have none."""
    task = config.task
    return {"num_labels": task.num_labels, "problem_type": task.problem_type} if task.problem_type else {}


def may_skip(config: RunConfig) -> bool:
    """Whether a row may be left out, so that only one producer can tell which rows make a step."""
    if config.sft.custom_dataset_class_path is not None:
        return True
    return data_options(config, str(config.data.prompt_data)).may_refuse


def build_renderer(config: RunConfig) -> SftRenderer:
    """Rows to samples; one in each worker process."""
    from relax.components.sft_render import EvalRows, SftRenderer
    from relax.engine.sft.dataset.examples import open_examples, split_rows

    custom = config.sft.custom_dataset_class_path
    examples = open_examples(data_options(config, str(config.data.prompt_data)), custom)
    rows, seed, size = len(examples), config.train.seed, config.sft.eval_size
    train: Sequence[int] = range(rows)
    evals: list[EvalRows] = []
    if size is not None:
        split, held_out = split_rows(rows, size, seed)
        train = split.tolist()
        evals.append(EvalRows(EVAL_SPLIT, examples, held_out.tolist()))
    for dataset in config.eval_datasets:
        keys = {"input_key": dataset.input_key, "label_key": dataset.label_key, "tool_key": dataset.tool_key}
        own = open_examples(data_options(config, dataset.path, "--eval-prompt-data", **keys), custom)
        evals.append(EvalRows(dataset.name, own, range(len(own))))
    order = RowOrder(train, seed=seed, end=stream_end(config, rows))
    return SftRenderer(
        examples, order, evals, supervised_options(config), reduction=str(config.algorithm.loss_reduction)
    )


def stream_end(config: RunConfig, rows: int) -> int:
    """Positions of the stream that a run may draw: those of its steps; of its epochs where rows may be left out."""
    steps = config.num_rollouts(rows) * config.global_batch_size
    if not may_skip(config):
        return steps
    epochs = config.rollout.num_epoch
    train_rows = rows - config.eval_rows(rows)
    return epochs * train_rows if epochs is not None else 1 << 62


def build_producer(
    config: RunConfig, wiring: Wiring, shard: int = 0, shards: int = 1, shared: InProcess | None = None
) -> Any:
    """The producer of shard `shard` of `shards` producers."""
    from relax.components.sft import ProducerSettings, SftProducer
    from relax.data.pool import ProcessorPool

    renderer = build_renderer(config)
    sft = config.sft
    pool = ProcessorPool(
        config.data.mm_processor_pool_size,
        setup=functools.partial(build_renderer, config) if config.data.mm_processor_pool_size else lambda: renderer,
        threads=sft.sft_prefetch_num_workers,
    )
    return SftProducer(
        data=SftData(
            rows=len(renderer.examples),
            train_rows=len(renderer.order.rows),
            digest=renderer.examples.digest,
            order=renderer.order.digest,
        ),
        renderer=renderer,
        run=pool.run,
        settings=ProducerSettings(
            shard=ShardOrder(shard, shards, config.global_batch_size),
            buffer=sft.sft_prefetch_buffer_size,
            chunk=sft.sft_prefetch_chunk_size,
            workers=sft.sft_prefetch_num_workers,
        ),
        bus=build_sft_bus(config, wiring, shared),
        clock=shared.clock if shared else RealClock(),
        close=pool.close,
        executor=ThreadPoolExecutor(1, thread_name_prefix="sft"),
    )


def sft_model_spec(config: RunConfig) -> ModelSpec:
    """The loss is that of the whole vocabulary at temperature 1: nothing is sampled."""
    spec = replace(model_spec(config, trainable=True), temperature=1.0, suppressed_ids=())
    return replace(spec, logprob_chunk=config.sft.sft_logits_chunk_size) if config.sft.sft_chunked_logits else spec


def sft_optimizer_spec(config: RunConfig, rows: int) -> OptimizerSpec:
    """A decay ends with the run, whose number of steps is known once the rows are counted."""
    spec = optimizer_spec(config)
    if spec.decay_style == "constant" or spec.decay_steps is not None:
        return spec
    return replace(spec, decay_steps=config.num_rollouts(rows))


def build_sft_actor(config: RunConfig, wiring: Wiring, rank: int, rows: int, shared: InProcess | None = None) -> Any:
    """One training rank. `rows` are those of --prompt-data."""
    from relax.algorithms.supervised.options import build_supervised_loss
    from relax.components.sft_actor import SftActor

    return SftActor(
        options=supervised_options(config),
        per_rank_fetch=config.sft.per_rank_fetch,
        backend=train_backend(config),
        loss=build_supervised_loss(supervised_options(config)),
        model=sft_model_spec(config),
        optimizer=sft_optimizer_spec(config, rows),
        settings=batch_settings(config),
        bus=build_sft_bus(config, wiring, shared),
        publisher=build_publisher(config, wiring) if rank == 0 and config.raises_rollout else None,
        clock=shared.clock if shared else RealClock(),
        deadline_s=config.sft.sft_tq_timeout_minutes * 60,
        executor=ThreadPoolExecutor(1, thread_name_prefix="actor"),
    )


def num_producers(config: RunConfig) -> int:
    """Producers of training rows: one a shard where each can tell its rows alone, else one that writes all shards."""
    alone = config.cluster.inline or may_skip(config) or supervised_options(config).task_type == "seq_cls"
    return 1 if alone else config.sft_shards
