# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`EchoEngine`: an `EngineClient` in this process that samples from a bigram table, and a router over several.

It keeps the rules of a real engine: weights change only between begin and end, tokens carry the version that sampled
them, a paused engine samples nothing, and memory is given back and taken in order. How long everything takes, and
what fails, is injected, so a schedule is a function of a seed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax.backends.base import EngineInfo, PauseMode
from relax.backends.engine_client import MEMORY_TAGS, EngineRefused
from relax.backends.tiny.policy import WEIGHT_NAME, draw, log_prob_table
from relax.backends.tiny.weights import WeightStore
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost
from relax.utils.rng import uniforms


@dataclass(frozen=True)
class EchoBehaviour:
    """What an engine's calls cost, in seconds of the injected clock, and which of them fail."""

    token_s: Callable[[str, int], float] = lambda rid, place: 0.0
    call_s: Callable[[str, int], float] = lambda verb, count: 0.0  # count: calls of this verb so far
    fault: Callable[[str, int], Exception | None] = lambda verb, count: None


class _Request:
    """One running request. `abort` ends whatever it waits for, with a TimeoutError out of `scope`."""

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.aborted = False
        self.ended = asyncio.Event()
        self.scope = asyncio.timeout(None)  # far cheaper than a task for every token

    def abort(self) -> None:
        if not self.aborted and not self.ended.is_set():
            self.aborted = True
            self.scope.reschedule(0.0)


class EchoEngine:
    """See the module.

    Args:
        weights: the table that it starts with, float64 `[V, V]`; version "default".
        store: where `weights_from_disk` finds versions published in memory.
        eos_id: ends a response; stays in it.
    """

    def __init__(
        self,
        weights: np.ndarray,
        *,
        clock: Clock,
        store: WeightStore | None = None,
        url: str = "echo://engine-0",
        eos_id: int = 0,
        behaviour: EchoBehaviour | None = None,
    ) -> None:
        self.url, self.version = url, "default"
        self._table = np.array(weights, np.float64)
        self._rows: dict[tuple[int, float], np.ndarray] = {}  # its log-probs by (last token, temperature), when asked
        self._rows_of = self._table
        self._clock, self._store, self._eos_id = clock, store or WeightStore(), eos_id
        self._behaviour = behaviour or EchoBehaviour()
        self._requests: dict[str, _Request] = {}
        self._open = asyncio.Event()  # neither paused nor asleep
        self._open.set()
        self._paused = False
        self._asleep: set[str] = set()
        self._flushed = True
        self._updating = False
        self._staged: np.ndarray | None = None
        self._calls: Counter[str] = Counter()
        self._dead = False

    @property
    def num_running(self) -> int:
        return len(self._requests)

    # ------------------------------------------------------------------ generation

    async def info(self) -> EngineInfo:
        await self._called("info")
        return EngineInfo(
            backend="echo",
            url=self.url,
            weight_version=self.version,
            seeds=True,
            version_spans=True,
            exact=True,
            exact_reason="engine and trainer read one table",
            logprob_kind="processed",
            max_running_requests=1 << 20,
            running_requests=self.num_running,
        )

    async def generate(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        await self._called("generate")
        rid = str(payload.get("rid") or f"anonymous-{self._calls['generate']}")
        if rid in self._requests:
            raise EngineRefused(f"engine {self.url}: request id {rid} is running", status=400)
        request = self._requests[rid] = _Request(rid)
        self._flushed = False
        try:
            return await self._answer(request, payload)
        finally:
            del self._requests[rid]
            request.ended.set()

    async def _answer(self, request: _Request, payload: Mapping[str, Any]) -> dict[str, Any]:
        params, prompt = payload["sampling_params"], list(payload["input_ids"])
        limit = int(params["max_new_tokens"])
        stops = {self._eos_id, *(params.get("stop_token_ids") or ())}
        key = np.full(limit, int(params["sampling_seed"]), np.uint64)
        uniform = uniforms(key, np.arange(limit, dtype=np.uint64))
        ids: list[int] = []
        entries: list[list[Any]] = []
        versions: list[str] = []
        finish: dict[str, Any] | None = None
        try:
            async with request.scope:
                while finish is None:
                    await self._clock.sleep(self._behaviour.token_s(request.rid, len(ids)))
                    while not self._open.is_set():
                        await self._open.wait()
                    last = ids[-1] if ids else prompt[-1]
                    token, log_prob = self._sample(last, float(params["temperature"]), uniform[len(ids)])
                    ids.append(token)
                    entries.append([log_prob, token, None])
                    versions.append(self.version)
                    if token in stops:
                        finish = {"type": "stop", "matched": token}
                    elif len(ids) >= limit:
                        finish = {"type": "length", "length": limit}
        except TimeoutError:
            if self._dead:
                raise EngineLost(f"engine {self.url} is dead") from None
            finish = {"type": "abort", "message": "aborted"}
        meta = {
            "id": request.rid,
            "finish_reason": finish,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "output_token_logprobs": entries,
            "weight_version": self.version,
            "weight_versions": spans(versions),
        }
        return {"text": " ".join(map(str, ids)), "output_ids": ids, "meta_info": meta}

    def _sample(self, last: int, temperature: float, uniform: float) -> tuple[int, float]:
        greedy = temperature == 0
        if self._rows_of is not self._table:
            self._rows, self._rows_of = {}, self._table
        key = (last, 1.0 if greedy else temperature)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = log_prob_table(self._table[last : last + 1], temperature=key[1])[0]
        token = int(row.argmax()) if greedy else draw(row, uniform)
        return token, float(row[token])

    async def abort(self, rid: str | None = None) -> None:
        await self._called("abort")
        self._abort(rid)

    def _abort(self, rid: str | None) -> None:
        for request in list(self._requests.values()):
            if rid in (None, request.rid):
                request.abort()

    # ------------------------------------------------------------------ control

    async def pause(self, mode: PauseMode) -> None:
        """No token is sampled until `resume`; with `abort` every running request ends before this returns."""
        await self._called("pause")
        self._paused = True
        self._update_gate()
        if mode == "abort":
            running = list(self._requests.values())  # those that arrive from now on are held
            self._abort(None)
            for request in running:
                await request.ended.wait()

    async def resume(self) -> None:
        await self._called("resume")
        if self._asleep:
            raise EngineRefused(f"engine {self.url}: {sorted(self._asleep)} sleep; wake them first", status=400)
        self._paused = False
        self._update_gate()

    async def flush(self) -> None:
        await self._called("flush")
        if self._requests:
            raise EngineRefused(f"engine {self.url}: cannot flush while requests run", status=400)
        self._flushed = True

    async def weights_begin(self) -> None:
        await self._called("weights_begin")
        if "weights" in self._asleep:
            raise EngineRefused(f"engine {self.url}: the weights sleep; wake them first", status=400)
        self._updating, self._staged = True, None

    async def weights_from_disk(self, folder: Path, version: int, *, flush: bool = True) -> None:
        """Stage a version; what serves stays as it is."""
        await self._called("weights_from_disk")
        if not self._updating:
            raise EngineRefused(f"engine {self.url}: no weight update has begun", status=400)
        self._staged = self._store.read(folder)[1][WEIGHT_NAME].astype(np.float64)

    async def weights_end(self, version: int) -> None:
        await self._called("weights_end")
        if self._staged is None:
            raise EngineRefused(f"engine {self.url}: the weight update brought no weights", status=400)
        self._table, self.version = self._staged, str(version)
        self._updating, self._staged = False, None

    async def sleep(self, tags: Iterable[str] = MEMORY_TAGS) -> None:
        await self._called("sleep")
        if self._requests or not self._flushed:
            raise EngineRefused(f"engine {self.url}: abort, then flush, then sleep", status=400)
        self._asleep |= set(tags)
        self._update_gate()

    async def wake(self, tags: Iterable[str] = MEMORY_TAGS) -> None:
        await self._called("wake")
        tags = set(tags)
        if "kv_cache" in tags and "weights" in self._asleep - tags:
            raise EngineRefused(f"engine {self.url}: wake the weights before the KV cache", status=400)
        self._asleep -= tags
        self._update_gate()

    async def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any:
        payload = payload or {}
        if path == "/generate":
            return await self.generate(payload)
        if path == "/abort_request":
            return await self.abort(None if payload.get("abort_all") else payload.get("rid"))
        raise EngineRefused(f"engine {self.url} has no route {path}", status=404)

    async def close(self) -> None:
        self._abort(None)

    @property
    def is_dead(self) -> bool:
        return self._dead

    def die(self) -> None:
        """What a killed process looks like: running requests and all later calls end as lost."""
        self._dead = True
        self._abort(None)

    def _update_gate(self) -> None:
        if self._paused or self._asleep:
            self._open.clear()
        else:
            self._open.set()

    async def _called(self, verb: str) -> None:
        """Time and faults of one call."""
        self._calls[verb] += 1
        seconds = self._behaviour.call_s(verb, self._calls[verb])
        if seconds:
            await self._clock.sleep(seconds)
        if self._dead:
            raise EngineLost(f"engine {self.url} is dead")
        error = self._behaviour.fault(verb, self._calls[verb])
        if error is not None:
            raise error


class EchoRouter:
    """In front of several engines: a request goes to the listed one with the fewest running requests."""

    def __init__(self, engines: Iterable[EchoEngine]) -> None:
        self._engines = {engine.url: engine for engine in engines}
        self._listed = set(self._engines)

    def know(self, engine: EchoEngine) -> None:
        """Let an engine that was not there at the start be added."""
        self._engines[engine.url] = engine

    async def add_worker(self, url: str) -> None:
        self._listed.add(url)

    async def remove_worker(self, url: str) -> None:
        self._listed.discard(url)

    async def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any:
        listed = [engine for url, engine in self._engines.items() if url in self._listed]
        if not listed:
            raise EngineLost("the router lists no engine")
        return await min(listed, key=lambda engine: engine.num_running).post(path, payload)


def spans(versions: list[str]) -> list[dict[str, Any]]:
    """SGLang's `weight_versions`: runs of equal versions, `[start, end)` in sampled tokens."""
    out: list[dict[str, Any]] = []
    for place, version in enumerate(versions):
        if not out or out[-1]["version"] != version:
            out.append({"version": version, "start": place, "end": place})
        out[-1]["end"] = place + 1
    return out
