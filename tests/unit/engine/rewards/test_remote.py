# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import math

import pytest
from aiohttp import web

from relax.engine.rewards.remote import pick
from relax.engine.rewards.score import RewardScorer
from relax.engine.rewards.worker_pool import ScoringFailed
from relax.utils.types import Sample


class InstantClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self):
        self.slept = []

    def now(self):
        return float(sum(self.slept))

    async def sleep(self, seconds):
        self.slept.append(seconds)


async def served(handler):
    app = web.Application()
    app.router.add_post("/score", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/score"


async def scored_by(handler, samples, clock=None, **options):
    runner, url = await served(handler)
    scorer = RewardScorer(rm_type="remote_rm", rm_url=url, clock=clock or InstantClock(), **options)
    try:
        await scorer.score(samples)
    finally:
        await scorer.close()
        await runner.cleanup()
    return scorer


async def test_a_service_gets_the_sample_and_its_answer_is_matched_by_id_V11():
    async def handler(request):
        body = await request.json()
        wrong = {"id": "g9.9.a0.t0", "score": -1.0}
        return web.json_response([wrong, {"id": body["id"], "score": len(body["response"]) + body["label"]}])

    samples = [Sample(group_index=3, index=i, response="x" * i, label=10) for i in range(5)]
    await scored_by(handler, samples)
    assert [s.reward for s in samples] == [10.0, 11.0, 12.0, 13.0, 14.0]


async def test_a_failing_service_is_asked_three_times_and_then_fails_the_sample():
    calls = []

    async def handler(request):
        calls.append(1)
        raise web.HTTPServiceUnavailable(text="busy")

    sample, clock = Sample(group_index=1, index=0), InstantClock()
    scorer = await scored_by(handler, [sample], clock)
    assert math.isnan(sample.reward) and scorer.counts == {"errors": 1}
    assert len(calls) == 3 and clock.slept == [0.5, 1.0]
    assert "503: busy" in sample.train_metadata["reward_error"]


async def test_a_refusal_is_not_retried():
    calls = []

    async def handler(request):
        calls.append(1)
        raise web.HTTPUnprocessableEntity(text="no label")

    await scored_by(handler, [Sample(group_index=1, index=0)])
    assert len(calls) == 1


async def test_other_numbers_of_the_service_become_parts():
    async def handler(request):
        return web.json_response({"score": 0.5, "format": 1})

    sample = Sample(group_index=1, index=0)
    await scored_by(handler, [sample])
    assert sample.reward == 0.5 and sample.reward_parts == {"format": 1.0}


@pytest.mark.parametrize("answer", [{"id": "other", "score": 1}, [], [{"id": "g1.0.a0.t0"}], "1", {"points": 1}])
def test_an_answer_that_is_not_ours_is_refused_V11(answer):
    with pytest.raises(ScoringFailed):
        pick(answer, "g1.0.a0.t0")
