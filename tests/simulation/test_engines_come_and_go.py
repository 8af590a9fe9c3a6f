# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Runs in which engines die, come back, join and leave, on virtual time; the checker reads the evidence alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation.checker import check, of_kind
from benchmarks.simulation.elastic import ElasticWorld
from benchmarks.simulation.plan import Plan
from benchmarks.simulation.world import World
from relax.core.engine_keeper import KeeperSettings
from relax.schedule import events as ev
from relax.schedule.clock import run_virtual
from relax.utils.errors import EngineLost, InfrastructureError

QUIET = Plan(seed=5, batch=2, rollouts=8, staleness=1)


def play(plan: Plan, folder: Path, **options: Any) -> ElasticWorld:
    folder.mkdir(parents=True, exist_ok=True)
    world = ElasticWorld(plan, folder, **options)
    run_virtual(world.run())
    return world


def membership(world: World) -> list[tuple[str, str]]:
    kinds = (ev.EngineJoined, ev.EngineLeft)
    return [(event.kind, event.engine) for event in world.journal.events if isinstance(event, kinds)]


RELAUNCH = KeeperSettings(relaunch=True)


def test_one_of_two_engines_dies_and_the_run_goes_on(tmp_path: Path):
    async def script(world: ElasticWorld) -> None:
        await world.steps(2)
        world.kill("engine-1")

    world = play(replace(QUIET, num_engines=2), tmp_path, script=script)
    check(world)
    assert membership(world)[2:] == [("engine_left", "engine-1")]


def test_the_last_engine_of_a_run_without_fault_tolerance_ends_it(tmp_path: Path):
    async def script(world: ElasticWorld) -> None:
        await world.steps(2)
        world.kill("engine-0")

    with pytest.raises(EngineLost, match="engine-0, the last engine: killed"):
        play(QUIET, tmp_path, script=script)


async def kill_before_the_first_version(world: ElasticWorld) -> None:
    assert world.loop.manifest is None
    world.kill("engine-0")


def test_the_only_engine_dies_before_there_is_a_version_and_joins_with_the_first_one(tmp_path: Path):
    world = play(QUIET, tmp_path, settings=RELAUNCH, script=kill_before_the_first_version)
    check(world)
    assert membership(world) == [("engine_joined", "engine-0")]


@pytest.mark.parametrize("settings", [KeeperSettings(), RELAUNCH], ids=["stays_away", "does_not_start_again"])
def test_one_of_two_engines_dies_before_there_is_a_version_and_the_run_goes_on(
    tmp_path: Path, settings: KeeperSettings
):
    plan = replace(QUIET, num_engines=2)
    world = play(plan, tmp_path, settings=settings, script=kill_before_the_first_version, broken_launches=3)
    check(world)
    assert membership(world) == [("engine_joined", "engine-1")]


def test_the_only_engine_dies_before_there_is_a_version_and_does_not_start_again(tmp_path: Path):
    with pytest.raises(EngineLost, match="engine-0, the last engine: engine-0 does not start"):
        play(QUIET, tmp_path, settings=RELAUNCH, script=kill_before_the_first_version, broken_launches=3)
    with pytest.raises(EngineLost, match="no engine is left"):
        play(QUIET, tmp_path / "without", script=kill_before_the_first_version)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_the_only_engine_dies_and_comes_back_with_the_newest_version(tmp_path: Path, staleness: int):
    async def script(world: ElasticWorld) -> None:
        for count in (2, 3, 5):
            await world.steps(count)
            world.kill("engine-0")

    # a launch takes longer than a request is tried again: without a hold, generation would give up
    world = play(replace(QUIET, staleness=staleness), tmp_path, settings=RELAUNCH, script=script, launch_s=200.0)
    check(world)
    assert membership(world) == [
        ("engine_joined", "engine-0"),
        *[("engine_left", "engine-0"), ("engine_joined", "engine-0")] * 3,
    ]
    joined = of_kind(world.journal.events, ev.EngineJoined)
    published = [
        max(
            (e.version for e in world.journal.events[: world.journal.events.index(j)] if isinstance(e, ev.Published)),
            default=0,
        )
        for j in joined
    ]
    assert [j.version for j in joined] == published


def test_an_engine_that_does_not_start_again_ends_the_run_after_its_tries(tmp_path: Path):
    async def script(world: ElasticWorld) -> None:
        await world.steps(2)
        world.broken_launches = 3
        world.kill("engine-0")

    with pytest.raises(EngineLost, match="engine-0, the last engine: engine-0 does not start"):
        play(QUIET, tmp_path, settings=RELAUNCH, script=script)


def test_an_engine_that_dies_while_it_joins_is_tried_again(tmp_path: Path):
    async def script(world: ElasticWorld) -> None:
        await world.steps(2)
        first = world.processes["engine-0"]
        world.kill("engine-0")
        while world.processes["engine-0"] is first:
            await asyncio.sleep(0.01)
        world.kill("engine-0")

    world = play(QUIET, tmp_path, settings=RELAUNCH, script=script)
    check(world)
    assert world.launches == 2


def test_recover_is_asked_for_where_nothing_restarts_by_itself(tmp_path: Path):
    async def script(world: ElasticWorld) -> None:
        await world.steps(1)
        world.kill("engine-1")
        await world.steps(3)
        assert await world.rollout.recover_rollout_engines() == {"status": "ok"}

    world = play(replace(QUIET, num_engines=2), tmp_path, script=script)
    check(world)
    assert membership(world)[2:] == [("engine_left", "engine-1"), ("engine_joined", "engine-1")]
    assert list(world.loop.scheduler.engines.values()) == [QUIET.rollouts] * 2


def test_engines_join_and_leave_on_request(tmp_path: Path):
    answers: dict[str, Any] = {}

    async def ended(world: ElasticWorld, direction: str, request_id: str) -> dict[str, Any]:
        while True:
            request = await world.rollout.scale_request(direction, request_id)
            if request["status"] in ("ACTIVE", "PARTIAL", "FAILED", "COMPLETED"):
                return request
            await asyncio.sleep(0.1)

    async def script(world: ElasticWorld) -> None:
        await world.steps(1)
        out = await world.rollout.scale_out({"num_replicas": 3})
        answers["out"] = await ended(world, "scale_out", out["request_id"])
        while len(of_kind(world.journal.events, ev.EngineJoined)) < 3:
            await asyncio.sleep(0.1)
        answers["engines"] = await world.rollout.engines()
        await world.steps(4)
        back = await world.rollout.scale_in({"num_replicas": 2})
        answers["in"] = await ended(world, "scale_in", back["request_id"])

    world = play(replace(QUIET, slow_requests=0.2), tmp_path, script=script)
    check(world)
    assert answers["out"]["status"] == "ACTIVE"
    names = answers["out"]["engine_ids"]
    assert len(names) == 2 and list(answers["engines"]) == ["engine-0", *names]
    assert {engine["status"] for engine in answers["engines"].values()} == {"active"}
    assert (answers["in"]["status"], answers["in"]["removed_engines"]) == ("COMPLETED", [names[-1]])
    assert world.removed == [names[-1]]
    assert membership(world)[1:] == [*(("engine_joined", name) for name in names), ("engine_left", names[-1])]
    installed = {event.engine for event in of_kind(world.journal.events, ev.Installed)}
    assert installed == {"engine-0", *names}  # those that joined took later versions, too


def test_a_scale_out_in_which_one_engine_fails_is_partial_and_leaves_nothing(tmp_path: Path):
    answers: dict[str, Any] = {}

    async def script(world: ElasticWorld) -> None:
        await world.steps(1)
        world.broken_launches = 1
        out = await world.rollout.scale_out({"num_replicas": 3})
        while (request := await world.rollout.scale_request("scale_out", out["request_id"]))["status"] != "PARTIAL":
            await asyncio.sleep(0.1)
        answers.update(request)

    world = play(QUIET, tmp_path, script=script)
    check(world)
    (failed,) = answers["failed_engines"]
    assert world.removed == [failed]
    assert f"{failed}: {failed} does not start" in answers["error_message"]
    assert len(answers["engine_ids"]) == 1


@pytest.mark.parametrize("seed", range(30))
def test_no_schedule_of_deaths_joins_and_leaves_breaks_a_promise(tmp_path: Path, seed: int):
    async def script(world: ElasticWorld) -> None:
        for event in range(40):
            await asyncio.sleep(20.0 * world.noise("pause", event))
            kind, living = world.noise("kind", event), [n for n in world.processes if not world.processes[n]._dead]
            try:
                if kind < 0.5 and living:
                    world.kill(living[int(world.noise("who", event) * len(living))])
                elif kind < 0.75:
                    await world.rollout.scale_out({"num_replicas": 1 + int(3 * world.noise("size", event))})
                else:
                    size = 1 + int(3 * world.noise("size", event))
                    await world.rollout.scale_in({"num_replicas": size, "force": world.noise("force", event) < 0.5})
            except InfrastructureError:
                raise
            except Exception as error:
                if not hasattr(error, "status"):  # a refusal, such as one operation at a time
                    raise

    plan = Plan(
        seed=seed,
        batch=1 + seed % 3,
        rollouts=10,
        staleness=seed % 3,
        num_engines=1 + seed % 2,
        stale_policy="drop" if seed % 5 == 4 else "wait",
        pause_mode=("retract", "abort", "in_place")[seed % 3],
        slow_requests=0.1 if seed % 2 else 0.0,
        eval_interval=3 if seed % 4 == 0 else None,
        install_failures=0.2 if seed % 6 == 5 else 0.0,
    )
    check(play(plan, tmp_path, settings=KeeperSettings(relaunch=True, drain_timeout_s=3.0), script=script))
