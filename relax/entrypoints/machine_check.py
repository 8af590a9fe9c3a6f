# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What this machine must offer before a run starts: cards, a port, room on the disk, a folder that nobody holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from relax.config.machine import Machine
from relax.config.report import checkpoint_ids, total_rounds
from relax.config.resources import check_fits
from relax.config.run import RunConfig
from relax.entrypoints.model_check import count_parameters
from relax.utils.errors import ConfigError
from relax.utils.lock import check_unlocked

STATE_BYTES = 12  # of one parameter in a checkpoint: weight and two moments, each float32
SLOT_BYTES = 1 << 29  # of a process that has imported torch, without any model


def machine_problems(config: RunConfig) -> Iterator[str]:
    """What would stop the run on this machine now."""
    from relax.distributed.ray.cluster import joins_cluster

    joins = joins_cluster() and not config.cluster.inline
    if not joins:
        yield from cards(config, Machine.here().gpus, memory_bytes())
    yield from _port(config, joins)
    if config.checkpoint.save:
        folder = Path(config.checkpoint.save).expanduser()
        yield from _lock(folder)
        yield from disk(config, free_bytes(folder))


def machine_notes(config: RunConfig, rows: int) -> Iterator[str]:
    """What will matter later."""
    parameters, count = _parameters(config), checkpoint_ids(config, total_rounds(config, rows))["count"]
    if not config.checkpoint.save or parameters is None or not count:
        return
    needed, free = count * parameters * STATE_BYTES, free_bytes(Path(config.checkpoint.save).expanduser())
    if parameters * STATE_BYTES <= free < needed:
        yield (
            f"--save {config.checkpoint.save}: {count} checkpoints need about {gigabytes(needed)} and the disk has "
            f"{gigabytes(free)} free: raise --save-interval, or remove old ones in time"
        )


def cards(config: RunConfig, gpus: int, memory: int) -> Iterator[str]:
    """More cards than there are; without GPUs a card is a process, and memory is the limit."""
    if config.cluster.inline:
        return
    if gpus:
        try:
            check_fits(config.placed, colocate=config.shares_cards, available=gpus)
        except ConfigError as error:
            yield str(error)
    elif config.needed_gpus * SLOT_BYTES > memory:
        yield (
            f"--resource needs {config.needed_gpus} cards; without GPUs each is a process of at least "
            f"{gigabytes(SLOT_BYTES)}, and this machine has {gigabytes(memory)} of memory: use at most "
            f"{memory // SLOT_BYTES}"
        )


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _port(config: RunConfig, joins: bool) -> Iterator[str]:
    from relax.core.deploy import check_port_is_free

    cluster = config.cluster
    if cluster.inline or joins or not cluster.serve_http:
        return
    try:
        check_port_is_free(cluster.serve_host, cluster.serve_port)
    except ConfigError as error:
        yield str(error)


def _lock(folder: Path) -> Iterator[str]:
    try:
        check_unlocked(folder)
    except ConfigError as error:
        yield str(error)


def disk(config: RunConfig, free: int) -> Iterator[str]:
    """A checkpoint is written aside before the old one goes, so one more must always fit."""
    parameters = _parameters(config)
    if parameters is not None and parameters * STATE_BYTES > free:
        yield (
            f"--save {config.checkpoint.save}: one checkpoint needs about {gigabytes(parameters * STATE_BYTES)} "
            f"({parameters:.2g} parameters x {STATE_BYTES} bytes) and the disk has {gigabytes(free)} free: make room, "
            "or give a folder on another disk"
        )


def free_bytes(folder: Path) -> int:
    """Room on the disk that holds `folder`, or would."""
    while not folder.exists():
        folder = folder.parent
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def _parameters(config: RunConfig) -> int | None:
    folder = Path(config.initial_model).expanduser()
    return count_parameters(folder) if folder.is_dir() else None


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
