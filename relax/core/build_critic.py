# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The critic role from a configuration. Runs in the process that hosts the rank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from relax.backends.base import OptimizerSpec
from relax.config.run import RunConfig
from relax.core.build import (
    STATE_DEADLINE_S,
    InProcess,
    Wiring,
    batch_settings,
    build_bus,
    model_spec,
    optimizer_spec,
    train_backend,
)
from relax.core.critic_files import critic_start
from relax.schedule.clock import RealClock


def build_critic(config: RunConfig, wiring: Wiring, rank: int = 0, shared: InProcess | None = None) -> Any:
    """One rank. The process group's variables are in the environment when there are several."""
    from relax.algorithms.value_loss import CriticLoss
    from relax.components.critic import Critic

    folder, weights = critic_start(config)
    return Critic(
        backend=train_backend(config, value_head=True),
        loss=CriticLoss(config.critic.value_clip),
        model=replace(model_spec(config, trainable=True), hf_path=folder, lora=None, mtp=None),
        optimizer=critic_optimizer(config),
        settings=batch_settings(config),
        bus=build_bus(config, wiring, shared),
        clock=shared.clock if shared else RealClock(),
        deadline_s=STATE_DEADLINE_S,
        start_weights=weights,
        executor=ThreadPoolExecutor(1, thread_name_prefix="critic"),
    )


def critic_optimizer(config: RunConfig) -> OptimizerSpec:
    """The actor's settings at a learning rate and a warm-up of its own; the decay has the same shape."""
    settings, own = optimizer_spec(config), config.critic
    scale = resolved_lr(own.critic_lr) / settings.lr if settings.lr else 0.0
    return replace(
        settings,
        lr=resolved_lr(own.critic_lr),
        warmup_steps=own.critic_lr_warmup_iters,
        min_lr=settings.min_lr * scale,
    )


def resolved_lr(value: float | None) -> float:
    """--critic-lr, given or derived."""
    assert value is not None
    return value
