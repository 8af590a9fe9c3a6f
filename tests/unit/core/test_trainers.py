# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The order in which actor and critic work, and when they may be saved together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relax.components.messages import ForwardReport, ReleaseReport, Settled, TrainReport, TrainTask
from relax.core.trainers import Trainers


class Recorder:
    """A role that notes what it is asked, and takes a turn of the event loop for it."""

    def __init__(self, name: str, calls: list[str], contained: int | None = 0, asleep: bool = False) -> None:
        self.name, self.calls, self.settled = name, calls, Settled(contained, 0, asleep)
        self.tasks: list[TrainTask] = []
        self.busy, self.stops = 0, False

    async def _work(self, what: str) -> None:
        assert not self.busy, "two calls at a time"
        self.busy += 1
        self.calls.append(f"{self.name} {what}")
        await asyncio.sleep(0)
        self.busy -= 1

    async def score(self, rollout_id: int, groups: Any, first: bool = True, last: bool = True) -> ForwardReport:
        await self._work(f"values {first}-{last}" if self.name == "critic" else "reference")
        return ForwardReport(0.0, 0.0, self.stops)

    async def propose(self, rollout_id: int, groups: Any) -> ForwardReport:
        await self._work("ids")
        return ForwardReport(0.0, 0.0)

    async def train(self, task: TrainTask) -> TrainReport:
        self.tasks.append(task)
        await self._work("train")
        return TrainReport(task.rollout_id, 1, {"loss": (1.0, 2.0)}, {}, {})

    async def onload(self) -> None:
        self.settled = Settled(self.settled.contained, 0, False)
        await self._work("wake")

    async def offload(self) -> None:
        self.settled = Settled(self.settled.contained, 0, True)
        await self._work("sleep")

    async def save(self, folder: str) -> None:
        await self._work(f"save {folder}")

    async def settle(self) -> Settled:
        return self.settled


def task(rollout_id: int = 0, *, first: bool = True, last: bool = True) -> TrainTask:
    return TrainTask(rollout_id, (), ("advantages",), (1.0,), first=first, last=last)


def pair(**options: Any) -> tuple[list[str], Recorder, Recorder, Trainers]:
    calls: list[str] = []
    actor, critic = Recorder("actor", calls), Recorder("critic", calls)
    return calls, actor, critic, Trainers(actor, critic, **options)  # type: ignore[arg-type]


async def test_on_shared_cards_the_critic_has_its_turn_first():
    calls, actor, critic, trainers = pair(shared=True)
    await trainers.wake()
    assert await trainers.prepare(0, ReleaseReport((), {}, {}), first=True) is False
    await trainers.train(task())
    assert calls == [
        "critic wake", "critic values True-True", "critic train", "critic sleep", "actor wake", "actor train"
    ]  # fmt: skip
    assert critic.tasks[0].tables == ("critic", "advantages")
    assert actor.tasks[0].tables == ("advantages",)


@pytest.mark.parametrize(
    ("asked", "words"), [({"scores_reference": True}, "reference"), ({"proposes": True}, "ids")], ids=["ref", "ids"]
)
async def test_on_shared_cards_an_actor_that_is_asked_before_the_training_is_awake_before_the_critic(asked, words):
    calls, actor, _, trainers = pair(shared=True, **asked)
    actor.stops = True
    await trainers.wake()
    assert await trainers.prepare(0, ReleaseReport((), {}, {}), first=True) is ("scores_reference" in asked)
    await trainers.train(task())
    assert calls == [
        "actor wake", f"actor {words}", "actor sleep", "critic wake", "critic values True-True", "critic train",
        "critic sleep", "actor wake", "actor train",
    ]  # fmt: skip


async def test_on_own_cards_both_train_together_and_the_critics_calls_never_overlap():
    calls, _, critic, trainers = pair(shared=False)
    await asyncio.gather(
        trainers.train(task(first=True, last=False)),
        trainers.prepare(0, ReleaseReport((), {}, {}, last=True), first=False),
    )
    assert sorted(calls) == ["actor train", "critic train", "critic values False-True"]
    await trainers.train(task(first=False, last=True))
    report = trainers.critic_report
    assert report is not None
    assert (report.num_steps, report.metrics["loss"]) == (2, (2.0, 4.0))  # of both parts
    assert len(critic.tasks) == 2


async def test_the_first_rollouts_leave_the_actor_as_it_is():
    _, actor, critic, trainers = pair(shared=False, only_critic=2)
    for rollout_id in range(3):
        await trainers.train(task(rollout_id))
    assert [t.update for t in actor.tasks] == [False, False, True]
    assert len(critic.tasks) == 3


async def test_an_actor_alone_is_asked_as_ever():
    calls: list[str] = []
    trainers = Trainers(Recorder("actor", calls), None, shared=True)  # type: ignore[arg-type]
    await trainers.wake()
    await trainers.prepare(0, ReleaseReport((), {}, {}), first=True)
    await trainers.train(task())
    await trainers.save_critic("nowhere")
    assert calls == ["actor wake", "actor train"]
    assert trainers.critic_report is None
    assert await trainers.apart(Settled(3, 3, False)) is None


async def test_a_critic_that_sleeps_is_woken_to_be_saved():
    calls, _, critic, trainers = pair(shared=True)
    await critic.offload()
    await trainers.save_critic("folder")
    assert calls == ["critic sleep", "critic wake", "critic save folder", "critic sleep"]


@pytest.mark.parametrize(
    ("actor", "critic", "why"),
    [
        (2, 2, None),
        (2, 3, "the actor's weights contain 2 rollouts, the critic's 3 rollouts"),
        (2, None, "the actor's weights contain 2 rollouts, the critic's part of a rollout"),
    ],
)
async def test_both_are_saved_together_or_not_at_all(actor, critic, why):
    _, _, role, trainers = pair(shared=True)
    role.settled = Settled(critic, 0, False)
    assert await trainers.apart(Settled(actor, 0, False)) == why
