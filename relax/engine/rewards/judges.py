# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Judge models as reward functions see them: a message list in, a text out.

    answer = await GenRMClient().generate([{"role": "user", "content": "..."}], {"temperature": 0.0})

Every judge has a queue of its own: at most `concurrency` requests are in flight, each to the engine with the fewest,
others wait. A request that times out or whose connection breaks is tried again, elsewhere where there is an elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax.backends.base import EngineClient
from relax.backends.engine_client import EngineRefused
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost, InfrastructureError, RelaxError

logger = logging.getLogger(__name__)

BACKOFF_S = 0.5  # before the second try; doubles
DEFAULT = "__default__"
OF_CHAT = {"max_response_len": "max_tokens", "max_new_tokens": "max_tokens"}  # other names of a chat's fields
NEUTRAL = {"top_k": -1}  # what is left out, because it is what an engine does anyway


class JudgeRefused(RelaxError):
    """The request cannot be answered. `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return JudgeRefused, (self.status, str(self))


@dataclass
class Judge:
    """One model: its engines, and what a request may leave open."""

    engines: Mapping[str, EngineClient]
    sampling: Mapping[str, Any]
    in_flight: Counter[str] = field(default_factory=Counter)


class Judges:
    """All judges of a run. `seed` makes answers repeatable: it is drawn from the request, never from a counter."""

    def __init__(
        self,
        judges: Mapping[str, Judge],
        *,
        clock: Clock,
        timeout_s: float,
        attempts: int,
        concurrency: int,
        seed: int = 0,
    ) -> None:
        self._judges, self._clock = dict(judges), clock
        self._timeout_s, self._attempts, self._seed = timeout_s, attempts, seed
        self._permits = {key: asyncio.Semaphore(concurrency) for key in judges}
        self.waiting: Counter[str] = Counter()  # by judge
        self.counts: Counter[str] = Counter()  # answered, retried, timeouts, failed, refused

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Mapping[str, Any] | None = None,
        route_key: str | None = None,
    ) -> str:
        """The judge's text. Raises JudgeRefused for a wrong request, EngineLost when no try has been answered."""
        key = self._key(route_key)
        body = self._body(self._judges[key], messages, sampling_params or {})
        self.waiting[key] += 1
        try:
            await self._permits[key].acquire()
        finally:
            self.waiting[key] -= 1
        try:
            return await self._ask(self._judges[key], key, body)
        except JudgeRefused:
            self.counts["refused"] += 1
            raise
        except InfrastructureError:
            self.counts["failed"] += 1
            raise
        finally:
            self._permits[key].release()

    def _key(self, route_key: str | None) -> str:
        if route_key is None and DEFAULT not in self._judges and len(self._judges) == 1:
            return next(iter(self._judges))
        key = DEFAULT if route_key is None else route_key
        if key not in self._judges:
            known = ", ".join(sorted(self._judges))
            raise JudgeRefused(400, f"route_key {route_key!r} names no judge; known are {known}")
        return key

    def _body(
        self, judge: Judge, messages: Sequence[Mapping[str, Any]], sampling_params: Mapping[str, Any]
    ) -> dict[str, Any]:
        wrong = [m for m in messages if not isinstance(m, Mapping) or not {"role", "content"} <= set(m)]
        if not messages or wrong:
            raise JudgeRefused(422, f"messages must be a list of objects with role and content, got {messages!r:.200}")
        sampling = {OF_CHAT.get(name, name): value for name, value in {**judge.sampling, **sampling_params}.items()}
        sampling = {name: value for name, value in sampling.items() if NEUTRAL.get(name) != value and value != {}}
        body = {"messages": [dict(message) for message in messages], **sampling}
        return body | ({} if "seed" in body else {"seed": self._seed_of(body)})

    def _seed_of(self, body: Mapping[str, Any]) -> int:
        text = f"{self._seed}|{json.dumps(body, sort_keys=True, default=str)}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") >> 1

    async def _ask(self, judge: Judge, key: str, body: Mapping[str, Any]) -> str:
        last: Exception | None = None
        for attempt in range(1, self._attempts + 1):
            name = min(judge.engines, key=lambda engine: judge.in_flight[engine])
            judge.in_flight[name] += 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await judge.engines[name].post("/v1/chat/completions", body)
                self.counts["answered"] += 1
                return str(answer["choices"][0]["message"]["content"] or "")
            except EngineRefused as error:
                raise JudgeRefused(error.status, f"judge {key} refused the request: {error}") from error
            except (TimeoutError, InfrastructureError) as error:
                self.counts["timeouts" if isinstance(error, TimeoutError) else "retried"] += 1
                logger.warning("no answer from a judge judge=%s engine=%s try=%d error=%r", key, name, attempt, error)
                last = error
            finally:
                judge.in_flight[name] -= 1
            if attempt < self._attempts:
                await self._clock.sleep(BACKOFF_S * 2 ** (attempt - 1))
        raise EngineLost(
            f"judge {key} did not answer in {self._attempts} tries of at most {self._timeout_s:g} s each: {last!r}. "
            "Raise --genrm-timeout-s or --genrm-retry-attempts, or look at its engine's log"
        ) from last

    # ------------------------------------------------------------------ state

    async def health(self) -> dict[str, dict[str, str]]:
        """{judge: {engine: "healthy" or what is wrong}}, asked now."""
        return {key: await self._health(judge) for key, judge in self._judges.items()}

    async def _health(self, judge: Judge) -> dict[str, str]:
        async def one(engine: EngineClient) -> str:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await engine.info()
            except (TimeoutError, RelaxError) as error:  # the caller is told in the answer
                return f"{type(error).__name__}: {error}"
            return "healthy"

        found = await asyncio.gather(*(one(engine) for engine in judge.engines.values()))
        return dict(zip(judge.engines, found, strict=True))

    def occupied(self) -> int:
        """Requests in flight."""
        return sum(judge.in_flight.total() for judge in self._judges.values())

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for judge in self._judges.values() for engine in judge.engines.values()))


# ---------------------------------------------------------------------- those of this process

_CURRENT: list[Judges] = []


def set_judges(judges: Judges | None) -> None:
    """Name the judges that reward functions of this process ask."""
    _CURRENT[:] = [] if judges is None else [judges]


def current_judges() -> Judges:
    if not _CURRENT:
        raise JudgeRefused(
            503, "this process has no judge: start the run with --genrm-model-path or --genrm-instances"
        )
    return _CURRENT[0]


class GenRMClient:
    """What a reward function uses. It asks the judges of the run that it is called by."""

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Mapping[str, Any] | None = None,
        route_key: str | None = None,
    ) -> str:
        return await current_judges().generate(messages, sampling_params, route_key)
