# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Who trains a rollout: the actor, and with a critic both. On shared cards they take turns, else they work together.

    shared cards    critic: values, train, sleep -> actor: wake, train
    own cards       critic: values -> critic and actor train at the same time

An actor that is asked before the training, for the reference's log-probs (--kl-coef without a reference role) or for
its likeliest ids (a teacher), answers before the critic's values, and on shared cards sleeps until it trains. The
advantages role waits on the bus for what both write.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from relax.components.messages import ActorHandle, CriticHandle, ReleaseReport, Settled, TrainReport, TrainTask
from relax.core.part_reports import join_trainings

CRITIC_TABLES = ("critic", "advantages")


class Trainers:
    """`only_critic` rollouts train the critic and leave the actor's weights as they are. `scores_reference` and
    `proposes`: what the actor writes before the training."""

    def __init__(
        self,
        actor: ActorHandle,
        critic: CriticHandle | None,
        *,
        shared: bool,
        only_critic: float = 0,
        scores_reference: bool = False,
        proposes: bool = False,
    ) -> None:
        self._actor, self._critic, self._shared, self._only_critic = actor, critic, shared, only_critic
        self._scores_reference, self._proposes = scores_reference, proposes
        self._turn = asyncio.Lock()  # the critic's calls are collective: one after another, in one order on all ranks
        self._reports: list[TrainReport] = []

    async def sleep(self) -> None:
        """Shared cards: leave them to the engines."""
        await self._actor.offload()
        if self._critic is not None:
            await self._critic.offload()

    async def wake(self) -> None:
        """Shared cards: whoever is first takes them."""
        await (self._actor if self._critic is None or self._actor_is_asked else self._critic).onload()

    @property
    def _actor_is_asked(self) -> bool:
        return self._scores_reference or self._proposes

    async def prepare(self, rollout_id: int, release: ReleaseReport, *, first: bool) -> bool:
        """Let both write what others read before the training of a rollout, or of its next part: the reference's
        log-probs and the likeliest ids, the critic's values. -> whether one of them was told to stop the run."""
        if self._critic is None:
            return await self._ask_actor(rollout_id, release)
        if not self._shared:
            told = await asyncio.gather(
                self._ask_actor(rollout_id, release), self._value(self._critic, rollout_id, release, first)
            )
            return any(told)
        stop = False
        if self._actor_is_asked:
            stop = await self._ask_actor(rollout_id, release)
            await self._actor.offload()
            await self._critic.onload()
        return await self._value(self._critic, rollout_id, release, first) or stop

    async def _ask_actor(self, rollout_id: int, release: ReleaseReport) -> bool:
        asked = [self._actor.score(rollout_id, release.groups)] if self._scores_reference else []
        asked += [self._actor.propose(rollout_id, release.groups)] if self._proposes else []
        return any(report.stop_requested for report in await asyncio.gather(*asked))

    async def _value(self, critic: CriticHandle, rollout_id: int, release: ReleaseReport, first: bool) -> bool:
        async with self._turn:
            report = await critic.score(rollout_id, release.groups, first, release.last)
        return report.stop_requested

    async def train(self, task: TrainTask) -> TrainReport:
        """Train a rollout, or its next part; returns the actor's report, and keeps the critic's."""
        if self._critic is None:
            return await self._actor.train(task)
        task = replace(task, update=task.rollout_id >= self._only_critic)
        if not self._shared:
            report, _ = await asyncio.gather(self._actor.train(task), self._train_critic(self._critic, task))
            return report
        await self._train_critic(self._critic, task)
        await self._critic.offload()
        await self._actor.onload()
        return await self._actor.train(task)

    async def _train_critic(self, critic: CriticHandle, task: TrainTask) -> None:
        if task.first:
            self._reports = []
        async with self._turn:
            self._reports.append(await critic.train(replace(task, tables=CRITIC_TABLES)))

    @property
    def critic_report(self) -> TrainReport | None:
        """Of the rollout that was trained last."""
        return join_trainings(self._reports) if self._reports else None

    # ------------------------------------------------------------------ checkpoints

    async def save_critic(self, folder: str) -> None:
        if self._critic is None:
            return
        asleep = (await self._critic.settle()).asleep
        if asleep:
            await self._critic.onload()
        await self._critic.save(folder)
        if asleep:
            await self._critic.offload()

    async def apart(self, actor: Settled) -> str | None:
        """Why the two cannot be saved together: one was stopped inside a rollout, or before the other; else None."""
        if self._critic is None:
            return None
        critic = await self._critic.settle()
        if critic.contained == actor.contained:
            return None
        words = ["part of a rollout" if s.contained is None else f"{s.contained} rollouts" for s in (actor, critic)]
        return f"the actor's weights contain {words[0]}, the critic's {words[1]}"
