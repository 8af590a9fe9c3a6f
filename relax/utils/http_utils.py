# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""HTTP calls to engines, the router and other internal services: `output = await post(url, payload)`.

One aiohttp session an event loop, without a connection limit. System proxy variables are ignored, so an internal call
never leaves the cluster. Only a failure to connect, or a kept-alive connection that the server had closed, is tried
again; an answer with an error status raises `HttpError` at once.

Calls are *tapped*: while a recorder is set (`recording`), every `/generate` call of the surrounding user function is
stamped with its request id and seed, and its answer is recorded. `register_local` serves a URL prefix by an object in
this process, so a run without sockets uses the same code.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from relax.utils.errors import EngineLost, InfrastructureError, RelaxError

DEFAULT_TIMEOUT_S = 3600.0  # a long response under a full engine; every call is bounded
CONNECT_TIMEOUT_S = 10.0
MAX_TRIES = 6
FIRST_WAIT_S = 0.1  # doubles on every try

_RETRIED = (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class HttpError(InfrastructureError):
    """A service answered with an error status. Carries `status` and the first part of the body."""

    retry = "request"

    def __init__(self, method: str, url: str, status: int, body: str) -> None:
        super().__init__(f"{method} {url} answered {status}: {body[:500]}")
        self.status = status
        self.body = body


class LocalClient(Protocol):
    """What may stand behind a registered URL prefix: an engine client in this process."""

    async def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any: ...


class Recorder(Protocol):
    """Sees every `/generate` call made while it is set."""

    async def before(self, payload: dict[str, Any]) -> dict[str, Any] | None:
        """Stamp the payload in place (it is a copy) and return None, or return an answer to give without a call."""
        ...

    def after(self, payload: Mapping[str, Any], answer: Any) -> None:
        """Record an answer."""
        ...

    def failed(self, payload: Mapping[str, Any]) -> None:
        """The request ended without an answer (an error, or the caller was cancelled)."""
        ...


_recorder: ContextVar[Recorder | None] = ContextVar("relax_recorder", default=None)
_sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = weakref.WeakKeyDictionary()
_local: dict[str, LocalClient] = {}


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Tap the calls of this task and of the tasks that it starts."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def register_local(url_prefix: str, client: LocalClient) -> None:
    """Serve `{url_prefix}/...` by `client.post(path, payload)`; a later registration replaces an earlier one."""
    _local[url_prefix.rstrip("/")] = client


def unregister_local(url_prefix: str) -> None:
    """Undo `register_local`; an unknown prefix is a no-op."""
    _local.pop(url_prefix.rstrip("/"), None)


def is_generate(url: str) -> bool:
    """Whether a URL is an engine's generation route."""
    return urlsplit(url).path.rstrip("/").endswith("/generate")


async def post(url: str, payload: Mapping[str, Any] | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """POST JSON and return the parsed answer (None for an empty one).

    Raises `HttpError` for an error status and `EngineLost` when nothing answers within `timeout_s` seconds or after
    the bounded tries to connect. The caller's payload is never changed.
    """
    recorder = _recorder.get()
    if recorder is None or not is_generate(url):
        return await request("POST", url, payload, timeout_s=timeout_s)
    stamped = dict(payload or {})
    if isinstance(stamped.get("sampling_params"), Mapping):
        stamped["sampling_params"] = dict(stamped["sampling_params"])
    answer = await recorder.before(stamped)
    if answer is None:
        try:
            answer = await request("POST", url, stamped, timeout_s=timeout_s)
        except BaseException:
            recorder.failed(stamped)
            raise
    recorder.after(stamped, answer)
    return answer


async def get(url: str, *, timeout_s: float = 30.0) -> Any:
    """GET and return the parsed answer; errors as in `post`."""
    return await request("GET", url, None, timeout_s=timeout_s)


async def request(
    method: str, url: str, payload: Mapping[str, Any] | None, *, timeout_s: float, tries: int = MAX_TRIES
) -> Any:
    """One untapped call with at most `tries` tries to connect."""
    local = _find_local(url)
    if local is not None:
        client, path = local
        return await _call_local(client, method, url, path, payload, timeout_s)
    wait_s = FIRST_WAIT_S
    for left in reversed(range(tries)):
        try:
            return await _call(method, url, payload, timeout_s)
        except TimeoutError as error:
            raise EngineLost(f"{method} {url} did not answer within {timeout_s:g} s") from error
        except _RETRIED as error:
            if not left:
                raise EngineLost(f"{method} {url} cannot be reached after {tries} tries: {error}") from error
        except aiohttp.ClientError as error:
            raise EngineLost(f"{method} {url} failed: {error!r}") from error
        await asyncio.sleep(wait_s)
        wait_s *= 2
    raise AssertionError("unreachable")


async def close_session() -> None:
    """Close the session of the running loop; the next call opens a new one."""
    session = _sessions.pop(asyncio.get_running_loop(), None)
    if session is not None:
        await session.close()


def _session() -> aiohttp.ClientSession:
    loop = asyncio.get_running_loop()
    session = _sessions.get(loop)
    if session is None or session.closed:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0)
        session = aiohttp.ClientSession(connector=connector, trust_env=False, json_serialize=_dumps)
        _sessions[loop] = session
    return session


def _dumps(payload: Any) -> str:
    return json.dumps(payload, separators=(",", ":"))


async def _call(method: str, url: str, payload: Mapping[str, Any] | None, timeout_s: float) -> Any:
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_TIMEOUT_S, timeout_s))
    async with _session().request(method, url, json=payload, timeout=timeout) as response:
        body = await response.read()
        if response.status >= 400:
            raise HttpError(method, url, response.status, body.decode("utf-8", "replace"))
        return _parse(body)


def _parse(body: bytes) -> Any:
    """JSON where the body is JSON; some control routes answer plain text, which is returned as it is."""
    if not body:
        return None
    try:
        return json.loads(body)
    except json.JSONDecodeError:
        return body.decode("utf-8", "replace")


def _find_local(url: str) -> tuple[LocalClient, str] | None:
    """The registered client with the longest prefix of `url`, and the path behind the prefix."""
    best = max((p for p in _local if url == p or url.startswith(p + "/")), key=len, default=None)
    return None if best is None else (_local[best], url[len(best) :] or "/")


async def _call_local(
    client: LocalClient, method: str, url: str, path: str, payload: Mapping[str, Any] | None, timeout_s: float
) -> Any:
    if method != "POST":
        raise InfrastructureError(f"{method} {url}: an engine in this process takes POST only")
    try:
        async with asyncio.timeout(timeout_s):
            return await client.post(path, payload)
    except TimeoutError as error:
        raise EngineLost(f"{method} {url} did not answer within {timeout_s:g} s") from error
    except RelaxError as error:
        status = getattr(error, "status", None)  # a client's refusal carries the engine's HTTP status
        if not isinstance(status, int) or isinstance(error, HttpError):
            raise
        raise HttpError(method, url, status, str(error)) from error
