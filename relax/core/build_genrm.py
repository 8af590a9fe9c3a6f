# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The genrm role from a configuration. Runs in the process that computes rewards; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relax.backends.base import EngineClient
from relax.config.genrm_checks import judges
from relax.config.run import RunConfig
from relax.core.build import InProcess, Wiring
from relax.core.run_folder import RunFolder
from relax.core.served_models import served_models
from relax.schedule.clock import RealClock


def build_genrm(
    config: RunConfig,
    wiring: Wiring,
    shared: InProcess | None = None,
    engines: Mapping[str, EngineClient] | None = None,
) -> Any:
    """`engines` of an inline run live in this process; otherwise they are found by their addresses."""
    from relax.components.genrm import GenRM
    from relax.engine.rewards.judges import Judge, Judges

    own, clients = config.genrm, engines or judge_engines(config, wiring)
    sampling = {judge.key: judge.sampling for judge in judges(config)}
    models = [model for model in served_models(config) if model.role == "genrm"]
    return GenRM(
        Judges(
            {m.key: Judge({name: clients[name] for name in m.engines}, sampling[m.key]) for m in models},
            clock=shared.clock if shared else RealClock(),
            timeout_s=own.genrm_timeout_s,
            attempts=own.genrm_retry_attempts,
            concurrency=own.genrm_max_concurrency,
            seed=config.rollout.rollout_seed,
        )
    )


def judge_engines(config: RunConfig, wiring: Wiring) -> dict[str, EngineClient]:
    from relax.backends.engine_client import HttpEngineClient

    folder = RunFolder(wiring.run_dir)
    names = [name for model in served_models(config) if model.role == "genrm" for name in model.engines]
    return {
        name: HttpEngineClient(
            wiring.served_urls[name], timeout_s=config.genrm.genrm_timeout_s, log_path=folder.log(f"{name}-process")
        )
        for name in names
    }
