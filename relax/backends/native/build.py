# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From an HF folder to a running engine: the one place that loads model, tokenizer and processor."""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax.backends.base import EngineConfig
from relax.data.media.processing import MediaOptions, MediaProcessor
from relax.utils.cores import CoreShare
from relax.utils.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineSettings:
    """How one native engine is built. `suppressed_ids` None: the processor's own list of media tokens."""

    model_path: Path
    dtype: str = "fp32"
    device: str = "cpu"
    attention: str = "exact"
    max_running_requests: int = 256
    max_total_tokens: int = 65536
    context_length: int | None = None
    suppressed_ids: tuple[int, ...] | None = None
    media_options: MediaOptions = field(default_factory=MediaOptions)
    weight_version: str = "default"

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> EngineSettings:
        return cls(
            model_path=arguments.model_path,
            dtype=arguments.dtype,
            device=arguments.device,
            attention=arguments.attention,
            max_running_requests=arguments.max_running_requests,
            max_total_tokens=arguments.max_total_tokens,
            context_length=arguments.context_length,
            suppressed_ids=parse_ids(arguments.suppressed_ids),
            media_options=MediaOptions.from_json(arguments.media_options, flag="--media-options"),
            weight_version=arguments.weight_version,
        )

    @classmethod
    def from_config(cls, config: EngineConfig) -> EngineSettings:
        """The settings that `NativeEngine.command` would give the process."""
        return cls(
            model_path=config.model_path,
            dtype=config.dtype,
            max_running_requests=config.max_running_requests,
            max_total_tokens=config.max_total_tokens,
            context_length=config.context_length,
            suppressed_ids=config.suppressed_ids,
            media_options=config.media_options,
        )


def parse_ids(text: str) -> tuple[int, ...] | None:
    """`auto` -> None, `none` -> (), `5,6` -> (5, 6)."""
    if text == "auto":
        return None
    if text == "none":
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--suppressed-ids {text!r} is not auto, none or a list like 5,6") from error


def build_service(settings: EngineSettings) -> Any:
    """A `NativeService`, its worker thread not yet running. Imports torch and transformers."""
    import torch

    from relax.backends.native.loop import EngineLoop
    from relax.backends.native.model_runner import ModelRunner
    from relax.backends.native.prompts import PromptReader
    from relax.backends.native.scheduler import Scheduler, StopStrings
    from relax.backends.native.service import NativeService, ServiceOptions

    folder = Path(settings.model_path)
    runner = ModelRunner.load(
        folder,
        dtype=settings.dtype,
        attention=settings.attention,
        max_total_tokens=settings.max_total_tokens,
        device=settings.device,
    )
    tokenizer, processor = load_tokenizer(folder), MediaProcessor(load_processor(folder), settings.media_options)
    text_config = runner.model.text_config
    prompts = PromptReader(tokenizer, processor, runner.model.positions, text_config.vocab_size)
    suppressed = processor.suppressed_ids if settings.suppressed_ids is None else settings.suppressed_ids
    exact, reason = runner.probe()
    limit = getattr(text_config, "max_position_embeddings", None) or settings.max_total_tokens
    context = settings.context_length or limit
    scheduler = Scheduler(
        runner=runner,
        max_running=settings.max_running_requests,
        context_length=context,
        stop_strings=StopStrings(prompts.decode),
        suppressed=torch.tensor(suppressed, device=settings.device) if suppressed else None,
        version=settings.weight_version,
    )
    options = ServiceOptions(
        model_path=str(folder),
        dtype=settings.dtype,
        device=settings.device,
        max_running_requests=settings.max_running_requests,
        max_total_tokens=settings.max_total_tokens,
        context_length=context,
        vocab_size=text_config.vocab_size,
        eos_ids=eos_ids(runner.model.hf, tokenizer),
        suppressed_ids=tuple(suppressed),
        exact=exact,
        exact_reason=reason,
    )
    return NativeService(runner, EngineLoop(scheduler, CoreShare.from_environment()), prompts, options)


def build_app(settings: EngineSettings) -> Any:
    """The Starlette application of an engine, for serving in this very process."""
    from relax.backends.native.server import create_app

    return create_app(build_service(settings))


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, or None when it has none."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    from relax.utils.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def load_processor(folder: Path) -> Any:
    """The folder's media processor, or None for a text model."""
    names = ("processor_config.json", "preprocessor_config.json")
    if not any((folder / name).exists() for name in names):
        return None
    from relax.utils.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder)


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a sequence: of the generation config, the text config and the tokenizer."""
    sources = [
        getattr(getattr(model, "generation_config", None), "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ]
    found: list[int] = []
    for source in sources:
        found += source if isinstance(source, (list, tuple)) else [] if source is None else [source]
    return tuple(dict.fromkeys(int(token) for token in found))
