# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Models that engines of this run serve beside the policy: a teacher, judges. They never take new weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relax.backends.base import EngineClient, EngineConfig
from relax.config.genrm_checks import DEFAULT, MAX_CONTEXT, judges
from relax.config.run import RunConfig
from relax.core.build import engine_config, engine_spec
from relax.schedule.clock import RealClock


@dataclass(frozen=True)
class ServedModel:
    """One model and the cards of its engines, which are `first_card` and those after it of the role's."""

    role: str
    key: str  # of several models of a role
    path: str
    cards: int
    cards_per_engine: int
    first_card: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of `EngineConfig` that differ

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of its engines, which their workers and logs have too."""
        stem = self.role if self.key == DEFAULT else f"{self.role}-{self.key}"
        return tuple(f"{stem}-engine-{place}" for place in range(self.cards // self.cards_per_engine))


def served_models(config: RunConfig) -> tuple[ServedModel, ...]:
    return (*_teachers(config), *_judges(config))


def _teachers(config: RunConfig) -> Iterator[ServedModel]:
    opd = config.distillation
    if opd.use_opd and opd.teacher_hf_checkpoint is not None:
        cards = config.resource["teacher"].gpus
        yield ServedModel("teacher", DEFAULT, opd.teacher_hf_checkpoint, cards, opd.teacher_num_gpus_per_engine)


def _judges(config: RunConfig) -> Iterator[ServedModel]:
    first = 0
    for judge in judges(config):
        given = dict(judge.engine)
        settings = {
            "context_length": given.get("max_context_len", MAX_CONTEXT),
            **{name: given[name] for name in ("max_total_tokens", "max_running_requests") if name in given},
        }
        yield ServedModel(
            "genrm", judge.key, judge.model_path, judge.num_gpus, judge.num_gpus_per_engine, first, settings
        )
        first += judge.num_gpus


def served_config(config: RunConfig, model: ServedModel, log_path: Path | None = None) -> EngineConfig:
    """As the policy's engines, but for the model and what its settings say."""
    own = engine_config(config, log_path)
    tensor_parallel = model.cards_per_engine if config.rollout.rollout_backend == "sglang" else 1
    path = Path(model.path).expanduser()
    return replace(own, model_path=path, tensor_parallel=tensor_parallel, suppressed_ids=None, **model.settings)


def build_served_engine(config: RunConfig, model: ServedModel, log_path: Path, host: str) -> Any:
    """One engine process, for the worker that hosts it. Imports no torch."""
    from relax.backends.engine_process import EngineProcess

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return EngineProcess(
        engine_spec(config),
        served_config(config, model, log_path),
        clock=RealClock(),
        host=host,
        gpus=tuple(int(card) for card in visible.split(",") if card.strip().isdecimal()),
        start_timeout_s=config.rollout.rollout_engine_init_timeout,
    )


async def serve_in_process(config: RunConfig) -> dict[str, EngineClient]:
    """{engine: client} of all models on native engines in this process, without sockets."""
    from relax.backends.engine_client import AsgiEngineClient
    from relax.backends.native.build import EngineSettings, build_app

    clients: dict[str, EngineClient] = {}
    for model in served_models(config):
        for name in model.engines:
            settings = EngineSettings.from_config(served_config(config, model))
            clients[name] = AsgiEngineClient(await asyncio.to_thread(build_app, settings))
    return clients
