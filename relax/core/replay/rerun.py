# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Training steps of a recorded run, once more: the run's own roles on an in-memory bus, in this process."""

from __future__ import annotations

import asyncio
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from relax.backends.base import TrainBackend
from relax.components.messages import (
    PRODUCERS,
    AdvantageReport,
    ReleasedGroup,
    ReleaseReport,
    TrainReport,
    TrainTask,
    partition_of,
)
from relax.config.run import RunConfig, default_values
from relax.core.build import InProcess, Wiring, build_actor, build_advantages, build_forward, bus_tables
from relax.core.build_critic import build_critic
from relax.core.build_teacher import build_teacher
from relax.core.checkpoint import MODEL, REFERENCE
from relax.core.controller import loop_settings
from relax.core.critic_files import critic_checkpoint
from relax.core.part_reports import join_advantages, join_trainings
from relax.core.replay.record import RunRecord, Start, StepRecord
from relax.core.served_models import serve_in_process
from relax.core.trainers import Trainers
from relax.data.columns import media_columns
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule.clock import RealClock
from relax.utils.errors import ConfigError
from relax.utils.types import MediaFeatures

Features = Mapping[int, Sequence[MediaFeatures]]  # by group, only of prompts that have media


def replay_config(config: RunConfig) -> RunConfig:
    """The recorded configuration in one process: weights go through a folder, rows are prepared here.

    A difference of engine and trainer ends no replay: where it comes from is what the comparison shows.
    """
    backend = default_values()["checkpoint_engine_backend"]
    return replace(
        config,
        cluster=replace(config.cluster, checkpoint_engine_backend=backend),
        data=replace(config.data, mm_processor_pool_size=0),
        train=replace(config.train, parity_interval=None, parity_limit=math.inf),
    )


def why_inexact(record: RunRecord) -> str:
    """Why bits of log-probs, gradients and weights need not come out again; "" when they must."""
    reasons, manifest = [], record.manifest
    ranks = max(record.config.resource["actor"].gpus, record.critic_ranks)
    if ranks > 1:
        reasons.append(f"{ranks} training processes added their gradients, here is one")
    device = manifest.get("device", "cpu")
    if not device.startswith("cpu"):
        reasons.append(f"the run computed on {device}")
    torch = metadata.version("torch")
    if manifest["versions"]["torch"] != torch:
        reasons.append(f"the run used torch {manifest['versions']['torch']}, here is {torch}")
    if manifest["machine"] != platform.machine():
        reasons.append(f"the run's machine was {manifest['machine']}, here is {platform.machine()}")
    return "; ".join(reasons)


class Rerun:
    """The training side of one run, moved on a step at a time. `wrap_backend` may look at what a backend is given."""

    def __init__(
        self,
        record: RunRecord,
        shared_dir: Path,
        *,
        wrap_backend: Callable[[TrainBackend], TrainBackend] | None = None,
    ) -> None:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when transformers is imported
        config = replay_config(record.config)
        self._config, self._settings = config, loop_settings(config, record.folder)
        self.wiring = Wiring(record.folder.root, shared_dir)
        bus = LocalBus({t: r for t, r in PRODUCERS.items() if t in bus_tables(config)})
        shared = InProcess(bus, {}, RealClock())
        self._bus, self._shared, self._teacher = bus, shared, None
        self._actor = build_actor(config, self.wiring, shared=shared, wrap_backend=wrap_backend)
        self._advantages = build_advantages(config, self.wiring, shared)
        self._forward = {
            role: build_forward(role, config, self.wiring, shared)
            for role in ("reference", "actor_fwd")
            if role in config.resource
        }
        self._critic = build_critic(config, self.wiring, shared=shared) if config.uses_critic else None
        self._trainers = Trainers(
            self._actor,
            self._critic,
            shared=False,
            only_critic=self._settings.critic_only_steps,
            scores_reference=self._settings.reference_first,
            proposes=self._settings.asks_student,
        )

    async def open(self, start: Start) -> WeightManifest:
        """Load the models and publish the weights that `start` means."""
        await self._actor.start()
        for role in self._forward.values():
            await role.start()
        if self._critic is not None:
            await self._critic.start()
        if self._config.distillation.use_opd:
            self._teacher = await self._open_teacher()
        if start.checkpoint is not None:
            kept = start.checkpoint / REFERENCE
            reference = str(kept) if kept.is_dir() and self._settings.actor_scores_reference else None
            await self._actor.load(str(start.checkpoint / MODEL), start.version, reference)
            if self._critic is not None:
                critic = critic_checkpoint(self._config, start.checkpoint)
                await self._critic.load(str(critic), start.version)
        manifest = await self._actor.publish(start.version)
        if start.version > start.reference_version:  # written before its version was published
            await self._refresh_reference(manifest)
        if start.version > 0 and "actor_fwd" in self._forward:
            await self._forward["actor_fwd"].load_version(manifest)
        return manifest

    async def _open_teacher(self) -> Any:
        """The teacher that the run had, where it can be had again."""
        config = self._config
        if config.distillation.opd_teacher_url is not None:
            raise ConfigError(
                f"the run's teacher was the engine at --opd-teacher-url {config.distillation.opd_teacher_url}: what "
                "it said is in no file, so steps of this run cannot be computed again"
            )
        engines = {} if config.distillation.opd_type == "megatron" else await serve_in_process(config)
        teacher = build_teacher(config, self.wiring, self._shared, engines)
        await teacher.start()
        return teacher

    async def step(
        self, step: StepRecord, blocks: Mapping[int, Block], features: Features
    ) -> tuple[AdvantageReport, TrainReport]:
        """Train one rollout as the training loop does, part after part: other roles first, then the actor."""
        rollout_id, partition, settings = step.rollout_id, partition_of(step.rollout_id), self._settings
        weighed, trained = [], []
        for number, part in enumerate(step.parts):
            last = number == len(step.parts) - 1
            groups = released_groups([blocks[group] for group in part], features)
            await self._put(partition, part, blocks, features)
            scorers = [*self._forward.values(), *([self._teacher] if self._teacher else [])]
            forwards = [role.score(rollout_id, groups) for role in scorers]
            release = ReleaseReport(groups, {}, {}, last)
            advantages, *_ = await asyncio.gather(
                self._advantages.compute(rollout_id, part, last),
                self._trainers.prepare(rollout_id, release, first=number == 0),
                *forwards,
            )
            task = TrainTask(
                rollout_id=rollout_id,
                groups=groups,
                tables=settings.tables,
                divisors=advantages.divisors,
                score_reference=settings.actor_scores_reference and not settings.reference_first,
                score_old=settings.actor_scores_old,
                first=number == 0,
                last=last,
            )
            weighed.append(advantages)
            trained.append(await self._trainers.train(task))
        await self._bus.drop(partition)
        return join_advantages(weighed, settings.parts_per_step), join_trainings(trained)

    @property
    def critic_report(self) -> TrainReport | None:
        """Of the step that was trained last."""
        return self._trainers.critic_report

    async def _put(
        self, partition: str, groups: Sequence[int], blocks: Mapping[int, Block], features: Features
    ) -> None:
        media = [Block(group, media_columns(features[group])) for group in groups if group in features]
        if media:
            await self._bus.put(partition, "media", media)
        await self._bus.put(partition, "rollout", [blocks[group] for group in groups])

    async def publish(self, version: int) -> WeightManifest:
        """Publish the weights, and give them to the roles that take them."""
        manifest = await self._actor.publish(version)
        if "actor_fwd" in self._forward:
            await self._forward["actor_fwd"].load_version(manifest)
        await self._refresh_reference(manifest)
        return manifest

    async def _refresh_reference(self, manifest: WeightManifest) -> None:
        interval = self._settings.ref_update_interval
        if interval and manifest.version % interval == 0:
            if "reference" in self._forward:
                await self._forward["reference"].load_version(manifest)
            elif self._settings.actor_scores_reference:
                await self._actor.refresh_reference()

    async def close(self) -> None:
        others = [role for role in (self._critic, self._teacher) if role is not None]
        for role in (self._actor, self._advantages, *others, *self._forward.values()):
            await role.stop()


def released_groups(blocks: Sequence[Block], features: Features) -> tuple[ReleasedGroup, ...]:
    return tuple(
        ReleasedGroup(
            group=block.uid,
            lengths=tuple(np.diff(block.columns["token_offsets"]).tolist()),
            digest=block.digest,
            has_media=block.uid in features,
        )
        for block in blocks
    )


def checksums_of(manifest: WeightManifest) -> dict[str, Any]:
    return {entry.name: entry.checksum for entry in manifest.tensors}
