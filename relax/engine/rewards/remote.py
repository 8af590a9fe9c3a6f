# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`remote_rm`: a reward service behind `--rm-url`.

One POST a sample: `{"id", "prompt", "response", "label", "metadata"}`. The answer is a number, an object with `reward`
or `score` (then all of it is kept), or a list of such objects with an `id` each, from which ours is taken by its id.
"""

from __future__ import annotations

from typing import Any

import aiohttp

from relax.engine.rewards.worker_pool import ScoringFailed
from relax.schedule.clock import Clock
from relax.utils.ids import RequestId
from relax.utils.types import Sample

ATTEMPTS = 3
BACKOFF_S = 0.5  # before the second attempt, doubled before the third
CONNECTIONS = 64


def sample_id(sample: Sample) -> str:
    return str(RequestId(sample.group_index or 0, sample.index or 0, sample.attempt))


def pick(answer: Any, identity: str) -> float | dict[str, Any]:
    """The reward of `identity` in a service's answer, whatever order a list has."""
    if isinstance(answer, list):
        own = [item for item in answer if isinstance(item, dict) and str(item.get("id")) == identity]
        if len(own) != 1:
            raise ScoringFailed(f"--rm-url answered {len(own)} items with id {identity} in a list of {len(answer)}")
        answer = own[0]
    if isinstance(answer, dict):
        if "id" in answer and str(answer["id"]) != identity:
            raise ScoringFailed(f"--rm-url answered for id {answer['id']!r}, asked was {identity}")
        for key in ("reward", "score"):
            if key in answer:
                rest = {name: value for name, value in answer.items() if name != "id"}
                return rest if len(rest) > 1 else answer[key]
        raise ScoringFailed(f"--rm-url answered an object without 'reward' or 'score': keys {sorted(answer)}")
    if isinstance(answer, (int, float)):
        return answer
    raise ScoringFailed(f"--rm-url answered {type(answer).__name__} {answer!r:.80}, not a number or an object")


class RemoteReward:
    """One HTTP session to the reward service. Connections are retried, wrong answers are not."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, sample: Sample) -> float | dict[str, Any]:
        identity = sample_id(sample)
        body = {
            "id": identity,
            "prompt": sample.prompt,
            "response": sample.response,
            "label": sample.label,
            "metadata": sample.metadata,
        }
        return pick(await self._post(body), identity)

    async def _post(self, body: dict[str, Any]) -> Any:
        if self._session is None:  # trust_env stays off: a system proxy must not catch cluster calls
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._session.post(self._url, json=body) as response:
                    if response.status == 200:
                        return await response.json(content_type=None)
                    problem = f"status {response.status}: {(await response.text())[:200]}"
                    if response.status < 500:
                        break
            except aiohttp.ClientError as error:
                problem = f"{type(error).__name__}: {error}"
            if attempt < ATTEMPTS:
                await self._clock.sleep(BACKOFF_S * 2 ** (attempt - 1))
        raise ScoringFailed(f"--rm-url {self._url}: {problem}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
