# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The real router with stub engines behind it, joining and leaving at run time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relax.engine.router.process import RouterProcess
from relax.engine.router.workers import RouterWorkers
from relax.schedule.clock import RealClock
from relax.utils.errors import EngineLost
from relax.utils.http_utils import HttpError, close_session, post
from tests.fake_engine import FakeEngine

pytestmark = pytest.mark.service
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("sglang_router")


@asynccontextmanager
async def serving(engine: FakeEngine) -> AsyncIterator[str]:
    config = uvicorn.Config(engine.app(), host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def routing(tmp_path: Path, **options: str) -> AsyncIterator[RouterProcess]:
    router = RouterProcess(clock=RealClock(), log_path=tmp_path / "router.log", **options)
    await router.start()
    try:
        yield router
    finally:
        await router.stop()
        await close_session()


def test_flags_of_the_user_come_last_and_win():
    command = RouterProcess(clock=RealClock(), extra_args=("--policy", "random", "--log-level", "debug")).command(1, 2)
    assert command[-4:] == ["--policy", "random", "--log-level", "debug"]
    assert command.index("--policy") < len(command) - 4


async def ask(router: RouterProcess, count: int) -> list[dict]:
    payload = {"input_ids": [2, 3], "return_logprob": True}
    params = [{"max_new_tokens": 8, "sampling_seed": n} for n in range(count)]
    return await asyncio.gather(
        *(
            post(f"{router.url}/generate", {**payload, "rid": f"g{n}.0.a0.t0", "sampling_params": params[n]})
            for n in range(count)
        )
    )


async def test_another_process_may_take_an_engine_out_and_put_it_back(tmp_path):
    # the rollout role lives in a worker of its own: it has the router's address and no more
    first, second = FakeEngine(), FakeEngine()
    async with routing(tmp_path, policy="round_robin") as router, serving(first) as url1, serving(second) as url2:
        await router.add_worker(url1, deadline_s=20.0)
        await router.add_worker(url2, deadline_s=20.0)
        workers = RouterWorkers(router.url, clock=RealClock())
        await workers.remove_worker(url2)
        await ask(router, 4)
        assert (len(first.requests), len(second.requests)) == (4, 0)
        await workers.add_worker(url2)
        await ask(router, 4)
        assert len(second.requests) == 2


async def test_engines_join_and_leave_at_run_time_and_identity_reaches_them(tmp_path):
    first, second = FakeEngine(), FakeEngine()
    async with routing(tmp_path, policy="round_robin") as router, serving(first) as url1, serving(second) as url2:
        with pytest.raises(HttpError, match="answered 503"):
            await ask(router, 1)
        await router.add_worker(url1, deadline_s=20.0)
        await router.add_worker(url1, deadline_s=20.0)  # a second time: no-op
        assert [w["url"] for w in await router.workers()] == [url1]
        await ask(router, 4)
        assert len(first.requests) == 4

        await router.add_worker(url2, deadline_s=20.0)
        answers = await ask(router, 8)
        assert Counter([len(first.requests), len(second.requests)]) == Counter([8, 4])
        assert [a["meta_info"]["id"] for a in answers] == [f"g{n}.0.a0.t0" for n in range(8)]
        seeds = {r["rid"]: r["sampling_params"]["sampling_seed"] for r in second.requests}
        assert all(rid == f"g{seed}.0.a0.t0" for rid, seed in seeds.items())

        await router.remove_worker(url1, deadline_s=20.0)
        await router.remove_worker(url1, deadline_s=20.0)
        await ask(router, 4)
        assert (len(first.requests), len(second.requests)) == (8, 8)


async def test_an_engine_that_cannot_be_reached_is_an_error_with_its_url(tmp_path):
    async with routing(tmp_path) as router:
        with pytest.raises(EngineLost, match=r"worker http://127\.0\.0\.1:9 is not listed 1 s after it was added"):
            await router.add_worker("http://127.0.0.1:9", deadline_s=1.0)


async def test_a_failed_request_is_not_tried_again_by_the_router(tmp_path):
    engine = FakeEngine()
    engine.errors = [RuntimeError("broken")]
    async with routing(tmp_path) as router, serving(engine) as url:
        await router.add_worker(url, deadline_s=20.0)
        with pytest.raises(HttpError, match="answered 500"):
            await ask(router, 1)
        assert len(engine.requests) == 1


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pid: int, deadline_s: float = 10.0) -> bool:
    end = time.monotonic() + deadline_s
    while running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not running(pid)


async def test_stop_ends_the_process_and_may_be_called_twice(tmp_path):
    async with routing(tmp_path) as router:
        pid = router.pid
        assert pid is not None and running(pid)
        await router.stop()
        await router.stop()
        assert not running(pid)
        with pytest.raises(EngineLost, match="the router is not running"):
            await router.workers()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_router_ends_with_its_parent_even_when_that_is_killed(tmp_path):
    code = (
        "import asyncio, time\n"
        "from relax.engine.router.process import RouterProcess\n"
        "from relax.schedule.clock import RealClock\n"
        "router = RouterProcess(clock=RealClock())\n"
        "asyncio.run(router.start())\n"
        "print(router.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    router_pid = int(parent.stdout.readline())
    assert running(router_pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_gone(router_pid)
