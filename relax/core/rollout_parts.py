# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Pieces of the rollout role that are made from configuration: prompts, preparation, evaluation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from relax.config.evaluation import EvalDataset
from relax.config.run import RunConfig
from relax.core.run_folder import RunFolder
from relax.data.chat import PreparedPrompt, PromptBuilder
from relax.data.datasets import PromptDataset, RawRow, open_dataset
from relax.data.media.processing import MediaOptions, MediaProcessor
from relax.data.model_files import load_processor, load_tokenizer
from relax.data.pool import ProcessorPool
from relax.engine.rollout.evaluate import eval_task, evaluate
from relax.engine.rollout.prompts import prompt_sample
from relax.schedule.clock import Clock
from relax.utils.types import Sample


def open_prompts(config: RunConfig) -> PromptDataset:
    data = config.data
    return open_dataset(
        data.prompt_data,  # type: ignore[arg-type]
        streaming=data.use_streaming_dataset,
        buffer_rows=data.streaming_buffer_size,
        prefetch_rows=data.prefetch_max_cached,
        prefetch_workers=data.prefetch_num_workers,
    )


def result_folder(config: RunConfig, folder: RunFolder) -> Path | None:
    """Where results go: `rollout_result/` is made below it. An empty --rollout-result-dir writes none."""
    given = config.logging.rollout_result_dir
    return folder.root if given is None else Path(given) if given else None


def media_options(config: RunConfig) -> MediaOptions:
    """Only limits that were given; the others are the processor's own."""
    import dataclasses

    given = {}
    for field in dataclasses.fields(MediaOptions):
        if hasattr(config.data, field.name) and config.origin(field.name) != "default":
            given[field.name] = getattr(config.data, field.name)
    return MediaOptions(**given)


class Preparer:
    """Rows to prompts, off the event loop."""

    def __init__(self, config: RunConfig) -> None:
        data, path = config.data, config.checkpoint.hf_checkpoint
        self._config = config
        self._tokenizer = load_tokenizer(path)  # type: ignore[arg-type]
        processor = load_processor(path) if data.multimodal_keys else None  # type: ignore[arg-type]
        self._media = MediaProcessor(processor, media_options(config), tokenizer=self._tokenizer)
        self._builder = self.builder(
            input_key=data.input_key,
            label_key=data.label_key,
            metadata_key=data.metadata_key,
            tool_key=data.tool_key,
            max_prompt_len=config.rollout.rollout_max_prompt_len,
        )
        self._pool = ProcessorPool(data.mm_processor_pool_size)

    def builder(self, **keys: Any) -> PromptBuilder:
        data = self._config.data
        return PromptBuilder(
            self._tokenizer,
            self._media,
            multimodal_keys=data.multimodal_keys,
            system_prompt=data.system_prompt,
            apply_chat_template=data.apply_chat_template,
            chat_template_kwargs=data.apply_chat_template_kwargs,
            **keys,
        )

    async def prepare(self, row: RawRow) -> PreparedPrompt:
        return await self._pool.run(self._builder.build, row)

    async def prepare_eval(self, dataset: EvalDataset) -> list[Sample]:
        """All rows of an evaluation set, prepared once."""
        builder = self.builder(
            input_key=dataset.input_key,
            label_key=dataset.label_key,
            metadata_key=dataset.metadata_key,
            tool_key=dataset.tool_key,
            max_prompt_len=self._config.eval.eval_max_prompt_len,
        )
        rows = open_dataset(dataset.path, flag="--eval-prompt-data")
        samples = []
        for number in range(len(rows)):
            prepared = await self._pool.run(builder.build, rows.row(number))
            sample = prompt_sample(prepared, group=number, row=number)
            if dataset.rm_type and dataset.rm_type != self._config.reward.rm_type:
                sample.metadata["rm_type"] = dataset.rm_type
            sample.metadata.update(dataset.metadata_overrides)
            samples.append(sample)
        rows.close()
        return samples

    def close(self) -> None:
        self._pool.close()


class Evaluator:
    """Evaluates every configured data set; rows are prepared at the first evaluation and kept."""

    def __init__(
        self,
        config: RunConfig,
        *,
        preparer: Preparer,
        args: Any,
        hook: Any,
        options: Any,
        scorer: Any,
        clock: Clock,
        wait_open: Callable[[], Awaitable[None]],
    ) -> None:
        self._config, self._preparer, self._args, self._hook = config, preparer, args, hook
        self._options, self._scorer, self._clock, self._wait_open = options, scorer, clock, wait_open
        self._rows: dict[str, list[Sample]] = {}

    async def run(self, rollout_id: int) -> tuple[dict[str, float], list[Sample]]:
        """({metric: value}, all samples) under the weights that the engines hold now."""
        for dataset in self._config.eval_datasets:
            if dataset.name not in self._rows:
                self._rows[dataset.name] = await self._preparer.prepare_eval(dataset)
        tasks = [eval_task(d, self._rows[d.name], args=self._args) for d in self._config.eval_datasets]
        results = await evaluate(
            tasks,
            args=self._args,
            hook=self._hook,
            options=self._options,
            scorer=self._scorer,
            clock=self._clock,
            reward_key=self._config.reward.eval_reward_key,
            wait_open=self._wait_open,
        )
        metrics: dict[str, float] = {}
        for result in results:
            prefix = f"eval/{result.name}"
            metrics[f"{prefix}/reward/mean"] = result.mean_reward
            metrics[f"{prefix}/truncated_fraction"] = result.truncated_fraction
            lengths = [s.response_length for s in result.samples]
            metrics[f"{prefix}/response_tokens/mean"] = sum(lengths) / max(1, len(lengths))
            if self._config.logging.log_passrate:
                metrics.update({f"{prefix}/pass@{k}": rate for k, rate in result.pass_rates().items()})
        return metrics, [s for result in results for s in result.samples]
