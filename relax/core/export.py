# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A checkpoint of a run into a Hugging Face folder, offline and in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from relax.config.run import RunConfig
from relax.core.build import model_spec, optimizer_spec
from relax.core.checkpoint import MODEL, TRACKER, damage, iteration_folder, latest_checkpoint
from relax.core.run_folder import read_config
from relax.utils.errors import ConfigError


def export_checkpoint(
    run: Path, output: Path, *, iteration: int | None = None, dtype: str | None = None, model: Path | None = None
) -> tuple[RunConfig, Path]:
    """Write `output` from a checkpoint below the run folder `run`; returns the run's configuration and the checkpoint.

    Args:
        iteration: which checkpoint; None: the one that the tracker names.
        dtype: "fp32" or "bf16" of the written tensors; None: as the run trained.
        model: the folder that training started from, where it has moved.
    """
    from relax.backends.fsdp.backend import FsdpBackend

    config, folder = read_config(run), checkpoint_of(run, iteration)
    if output.exists():
        raise ConfigError(f"--output-dir {output} exists: name a new folder")
    spec = model_spec(config, trainable=True)
    changes: dict[str, Any] = {"dtype": dtype} if dtype else {}
    spec = replace(spec, **changes, **({"hf_path": model} if model else {}))
    if spec.lora is not None:
        spec = replace(spec, lora=replace(spec.lora, export_merged=True))
    backend = FsdpBackend(attn="sdpa")  # no forward is computed: not even the probe of the exact one
    backend.open(spec, optimizer_spec(config))
    backend.load(folder / MODEL, optimizer=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    backend.export_hf(output)
    backend.close()
    return config, folder


def checkpoint_of(run: Path, iteration: int | None) -> Path:
    """`iter_XXXXXXX` of the run folder, with its files checked; without a number the newest that is whole."""
    if iteration is None:
        found = latest_checkpoint(run)
        if found is None:
            raise ConfigError(f"--run-dir {run} has no {TRACKER}: the run has written no checkpoint yet")
        return found[0]
    folder = iteration_folder(run, iteration)
    problem = damage(folder) if folder.is_dir() else "it is not there"
    if problem:
        there = ", ".join(path.name for path in sorted(run.glob("iter_*"))) or "no checkpoint"
        raise ConfigError(f"--iteration {iteration}: {folder.name}: {problem}; {run} has {there}")
    return folder
