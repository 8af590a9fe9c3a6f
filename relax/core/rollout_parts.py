# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Pieces of the rollout role that are made from configuration: prompts, preparation, evaluation."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from relax.components.details import DetailsWriter
from relax.components.rollout import PostProcess, SampleFilter
from relax.config.evaluation import EvalDataset
from relax.config.run import RunConfig
from relax.core.build import media_options
from relax.data.chat import Overlong, OverlongPrompt, PreparedPrompt, PromptBuilder
from relax.data.datasets import PromptDataset, RawRow, open_dataset
from relax.data.media.processing import MediaProcessor
from relax.data.model_files import load_processor, load_tokenizer
from relax.data.pool import ProcessorPool
from relax.engine.filters.samples import load_sample_filter
from relax.engine.rewards.post_process import load_post_process
from relax.engine.rollout.evaluate import eval_task, evaluate
from relax.engine.rollout.prompts import prompt_sample
from relax.schedule.clock import Clock
from relax.utils.errors import ConfigError, DataError
from relax.utils.imports import load_callable
from relax.utils.types import Sample

logger = logging.getLogger(__name__)
CUSTOM_PROMPT_FLAG = "--custom-prompt-path"


def open_prompts(config: RunConfig) -> PromptDataset:
    data = config.data
    return open_dataset(
        data.prompt_data,  # type: ignore[arg-type]
        streaming=data.use_streaming_dataset,
        buffer_rows=data.streaming_buffer_size,
        prefetch_rows=data.prefetch_max_cached,
        prefetch_workers=data.prefetch_num_workers,
    )


def sample_filter(config: RunConfig, args: Any) -> SampleFilter | None:
    path = config.rollout.rollout_sample_filter_path
    return functools.partial(load_sample_filter(path), args) if path else None


def post_process(config: RunConfig, args: Any) -> PostProcess | None:
    path = config.reward.custom_reward_post_process_path
    return load_post_process(path, args) if path else None


def details_writer(config: RunConfig, tables: tuple[str, ...]) -> DetailsWriter | None:
    folder = config.logging.dump_details
    return DetailsWriter(Path(folder).expanduser(), tables) if folder else None


def custom_prompt(config: RunConfig) -> Callable[[Any, Any], Any] | None:
    path = config.data.custom_prompt_path
    return load_callable(path, flag=CUSTOM_PROMPT_FLAG, positional=("prompt", "row")) if path else None


def chat_template(config: RunConfig) -> str | None:
    """The text of --chat-template."""
    path = config.data.chat_template
    try:
        return Path(path).expanduser().read_text("utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {path} cannot be read: {error}") from error


def overlong(config: RunConfig) -> Overlong:
    """What the builder does above the limit: leaving out is up to whoever asks for the prompt."""
    policy = config.rollout.overlong_prompt
    return "error" if policy == "drop" else policy  # type: ignore[return-value]


class PromptBuilders:
    """The builder of training prompts and one for each evaluation set, over one tokenizer. One in each process."""

    def __init__(self, config: RunConfig) -> None:
        data, path = config.data, config.checkpoint.hf_checkpoint
        self._config = config
        self._tokenizer = load_tokenizer(path)  # type: ignore[arg-type]
        processor = load_processor(path) if data.multimodal_keys else None  # type: ignore[arg-type]
        self._media = MediaProcessor(processor, media_options(config), tokenizer=self._tokenizer)
        self._train = self._builder(
            input_key=data.input_key,
            label_key=data.label_key,
            metadata_key=data.metadata_key,
            tool_key=data.tool_key,
            max_prompt_len=config.rollout.rollout_max_prompt_len,
        )
        self._eval = {
            dataset.name: self._builder(
                input_key=dataset.input_key,
                label_key=dataset.label_key,
                metadata_key=dataset.metadata_key,
                tool_key=dataset.tool_key,
                max_prompt_len=config.eval.eval_max_prompt_len,
            )
            for dataset in config.eval_datasets
        }

    def build(self, row: RawRow, dataset: str | None = None) -> PreparedPrompt:
        """A row of the evaluation set `dataset`, or of the training data."""
        return (self._train if dataset is None else self._eval[dataset]).build(row)

    def _builder(self, **keys: Any) -> PromptBuilder:
        data = self._config.data
        return PromptBuilder(
            self._tokenizer,
            self._media,
            multimodal_keys=data.multimodal_keys,
            system_prompt=data.system_prompt,
            apply_chat_template=data.apply_chat_template,
            chat_template=chat_template(self._config),
            chat_template_kwargs=data.apply_chat_template_kwargs,
            custom_prompt=custom_prompt(self._config),
            overlong=overlong(self._config),
            **keys,
        )


class Preparer:
    """Rows to prompts, off the event loop."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        size = config.data.mm_processor_pool_size
        if size > 0:
            PromptBuilders(config)  # what cannot be built is told here, where a worker process would only die
        self._pool = ProcessorPool(size, setup=functools.partial(PromptBuilders, config))

    async def prepare(self, row: RawRow) -> PreparedPrompt:
        return await self._pool.run(PromptBuilders.build, row)

    async def prepare_eval(self, dataset: EvalDataset) -> list[Sample]:
        """All rows of an evaluation set, prepared once; too long ones are left out unless that is an error."""
        rows = open_dataset(dataset.path, flag="--eval-prompt-data")
        samples: list[Sample] = []
        for number in range(len(rows)):
            try:
                prepared = await self._pool.run(PromptBuilders.build, rows.row(number), dataset.name)
            except OverlongPrompt as error:
                if self._config.rollout.overlong_prompt == "error":
                    raise
                logger.warning("evaluation prompt left out dataset=%s: %s", dataset.name, error)
                continue
            sample = prompt_sample(prepared, group=number, row=number)
            if dataset.rm_type and dataset.rm_type != self._config.reward.rm_type:
                sample.metadata["rm_type"] = dataset.rm_type
            sample.metadata.update(dataset.metadata_overrides)
            samples.append(sample)
        rows.close()
        if not samples:
            raise DataError(f"evaluation data set {dataset.name}: no prompt fits --eval-max-prompt-len")
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
