# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The ranks of one training job: how they find each other, and the few collectives the backend needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relax.utils.errors import ConfigError


@dataclass(frozen=True)
class Ranks:
    """One rank's view. With `world_size` 1 there is no process group and every collective is the identity."""

    rank: int = 0
    world_size: int = 1
    device: str = "cpu"
    owns_group: bool = False  # this object made the default process group and ends it

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """The picklable `value` of every rank, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def close(self) -> None:
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()


def init_distributed(
    *, device: str | None = None, timeout_s: float = 600.0, env: Mapping[str, str] | None = None
) -> Ranks:
    """Join the ranks named by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (and LOCAL_RANK on GPUs).

    Without WORLD_SIZE, or with 1, nothing is started. `timeout_s` bounds every later collective.
    """
    env = os.environ if env is None else env
    world_size, rank = int(env.get("WORLD_SIZE", "1")), int(env.get("RANK", "0"))
    if device is None:
        device = f"cuda:{env.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    if world_size == 1:
        return Ranks(device=device)
    absent = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]
    if absent:
        raise ConfigError(f"WORLD_SIZE is {world_size} but {', '.join(absent)} is not set: set all four for each rank")
    if dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size(), device)
    dist.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        init_method=f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    return Ranks(rank, world_size, device, owns_group=True)
