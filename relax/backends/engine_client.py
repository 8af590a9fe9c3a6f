# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One engine, or the router in front of several, in SGLang's wire format: over HTTP, or in process without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.backends.base import EngineInfo, PauseMode
from relax.utils.errors import EngineLost, RelaxError, WeightSyncError

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 4.0  # SGLang closes an idle connection after 5 s, and a request on it would be lost
RETRY_PAUSES_S = (0.1, 0.5)  # before the second and the third try of a call that may be repeated
UPDATE_IS_OPEN = "session is already open"  # SGLang's words
MEMORY_TAGS = ("weights", "kv_cache")


class EngineRefused(RelaxError, ValueError):
    """The engine answered with an error status: the call is wrong, the engine lives."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class _SglangCalls:
    """The verbs of `EngineClient` as SGLang routes. A transport implements `_send`."""

    url: str

    async def _send(self, method: str, path: str, payload: Mapping[str, Any] | None, *, repeat: bool) -> Any:
        """JSON (or text) of the answer. Raises `EngineRefused` or `EngineLost`."""
        raise NotImplementedError

    async def info(self) -> EngineInfo:
        """Capabilities, from /server_info; SGLang before 0.5.5 has only the `/get_...` routes.

        The weight version is that of /model_info: SGLang's /server_info goes on naming the one it started with.
        """
        raw = await self._either("/server_info", "/get_server_info")
        if not isinstance(raw, Mapping):
            raise EngineRefused(f"{self.url}/server_info is no JSON object: {str(raw)[:80]!r}", status=200)
        if raw.get("backend") != "native":
            model = await self._either("/model_info", "/get_model_info")
            raw = {**raw, "weight_version": model.get("weight_version", raw.get("weight_version", "default"))}
        return engine_info(self.url, raw)

    async def _either(self, path: str, older: str) -> dict[str, Any]:
        try:
            return await self._send("GET", path, None, repeat=True)
        except EngineRefused as error:
            if error.status != 404:
                raise
            return await self._send("GET", older, None, repeat=True)

    async def generate(self, payload: Mapping[str, Any]) -> Any:
        """One /generate call; with `n` > 1 the answer is a list."""
        return await self._send("POST", "/generate", payload, repeat=False)

    async def abort(self, rid: str | None = None) -> None:
        await self._send("POST", "/abort_request", {"abort_all": True} if rid is None else {"rid": rid}, repeat=True)

    async def pause(self, mode: PauseMode) -> None:
        await self._send("POST", "/pause_generation", {"mode": mode}, repeat=True)

    async def resume(self) -> None:
        await self._send("POST", "/continue_generation", {}, repeat=True)

    async def flush(self) -> None:
        await self._send("POST", "/flush_cache", {}, repeat=True)

    async def weights_begin(self) -> None:
        """Open an update. SGLang holds on to one whose sender is gone, which is closed first."""
        try:
            await self._send("POST", "/begin_weight_update", {}, repeat=True)
        except EngineRefused as error:
            if UPDATE_IS_OPEN not in str(error):
                raise
            await self._send("POST", "/end_weight_update", {}, repeat=False)
            await self._send("POST", "/begin_weight_update", {}, repeat=False)

    async def weights_from_disk(self, folder: Path, version: int, *, flush: bool = True) -> None:
        """`flush`: forget the KV cache of the old weights, which SGLang refuses while requests stand still in it."""
        payload = {"model_path": str(folder), "weight_version": str(version), "flush_cache": flush}
        _check_success(await self._send("POST", "/update_weights_from_disk", payload, repeat=False), self.url)

    async def weights_end(self, version: int) -> None:
        answer = await self._send("POST", "/end_weight_update", {"weight_version": str(version)}, repeat=False)
        _check_success(answer, self.url)

    async def sleep(self, tags: Iterable[str] = MEMORY_TAGS) -> None:
        await self._send("POST", "/release_memory_occupation", {"tags": list(tags)}, repeat=False)

    async def wake(self, tags: Iterable[str] = MEMORY_TAGS) -> None:
        await self._send("POST", "/resume_memory_occupation", {"tags": list(tags)}, repeat=False)

    async def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any:
        return await self._send("POST", path, payload or {}, repeat=False)

    async def get(self, path: str) -> Any:
        return await self._send("GET", path, None, repeat=True)


class HttpEngineClient(_SglangCalls):
    """Over aiohttp. One session without a connection limit serves any number of concurrent calls.

    `timeout_s` bounds one call from the first byte sent to the last received. A given `session` stays the caller's;
    otherwise one is opened at the first call and closed by `close`. System proxies are never used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        session: aiohttp.ClientSession | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session = session
        self._owns_session = session is None
        self._log_path = log_path

    async def close(self) -> None:
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(self, method: str, path: str, payload: Mapping[str, Any] | None, *, repeat: bool) -> Any:
        import aiohttp

        for pause in (*RETRY_PAUSES_S, None) if repeat else (None,):
            try:
                return await self._once(method, path, payload)
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                if pause is None or isinstance(error, TimeoutError):
                    raise self._lost(path, error) from error
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _once(self, method: str, path: str, payload: Mapping[str, Any] | None) -> Any:
        session = self._open()
        data = None if payload is None else json.dumps(payload, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        async with session.request(
            method, self.url + path, data=data, headers=headers, timeout=self._timeout()
        ) as reply:
            raw = await reply.read()
            return _parsed(self.url, path, reply.status, raw)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session

    def _timeout(self) -> aiohttp.ClientTimeout:
        import aiohttp

        return aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S)

    def _lost(self, path: str, error: BaseException) -> EngineLost:
        log = f"; its log is {self._log_path}" if self._log_path else ""
        what = f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else repr(error)
        return EngineLost(f"engine {self.url} lost in {path}: {what}{log}")


class AsgiEngineClient(_SglangCalls):
    """Calls an ASGI application in this process: the same requests and answers, without sockets."""

    def __init__(self, app: Any, url: str = "inline://engine") -> None:
        self.url = url
        self.app = app

    async def close(self) -> None:
        """Stop the engine behind the application."""
        service = getattr(getattr(self.app, "state", None), "service", None)
        if service is not None:
            await asyncio.to_thread(service.close)

    async def _send(self, method: str, path: str, payload: Mapping[str, Any] | None, *, repeat: bool) -> Any:
        body = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode()
        status, chunks = 500, []
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not unread:
                await asyncio.Event().wait()  # the client stays until it has its answer
            return unread.pop()

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))

        await self.app(_scope(method, path), receive, send)
        return _parsed(self.url, path, status, b"".join(chunks))


def engine_info(url: str, raw: Mapping[str, Any]) -> EngineInfo:
    """Capabilities from the /server_info of the native engine or of SGLang."""
    native = raw.get("backend") == "native"
    deterministic = bool(raw.get("enable_deterministic_inference"))
    return EngineInfo(
        backend="native" if native else "sglang",
        url=url,
        weight_version=str(raw.get("weight_version", "default")),
        seeds=bool(raw.get("seeds", deterministic)),
        version_spans=bool(raw.get("version_spans", not native)),
        exact=bool(raw.get("exact", False)),
        exact_reason=str(raw.get("exact_reason", "SGLang's kernels are not those of the trainer")),
        logprob_kind=str(raw.get("logprob_kind", "processed")),
        max_running_requests=int(raw.get("max_running_requests") or 0),
        running_requests=_running(raw.get("internal_states")),
        raw=dict(raw),
    )


def _running(states: Any) -> int | None:
    """Requests inside the engine, running or waiting, over its data-parallel parts."""
    keys = ("num_running_reqs", "num_queue_reqs")
    if not states or any(key not in state for state in states for key in keys):
        return None
    return sum(int(state[key]) for state in states for key in keys)


def _parsed(url: str, path: str, status: int, raw: bytes) -> Any:
    try:
        content: Any = json.loads(raw) if raw else {}
    except ValueError:
        content = raw.decode("utf-8", "replace")
    if status < 400:
        return content
    message = content
    if isinstance(content, Mapping):
        error = content.get("error", content)
        message = error.get("message", error) if isinstance(error, Mapping) else error
    if status in (502, 503, 504):
        raise EngineLost(f"engine {url} lost in {path}: HTTP {status}: {message}")
    raise EngineRefused(f"engine {url} refused {path}: HTTP {status}: {message}", status=status)


def _check_success(answer: Any, url: str) -> None:
    if isinstance(answer, Mapping) and answer.get("success") is False:
        raise WeightSyncError(f"engine {url} did not take the weights: {answer.get('message', answer)}")


def _scope(method: str, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("inline", 0),
        "server": ("inline", 0),
    }
