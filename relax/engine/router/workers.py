# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The router's list of engines, over its own routes: any process of the run may change it."""

from __future__ import annotations

import logging
from typing import Any

from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost
from relax.utils.http_utils import HttpError, get, request

logger = logging.getLogger(__name__)

POLL_S = 0.05
CALL_TIMEOUT_S = 10.0


class RouterWorkers:
    """Adds and removes engines of the router at `url`."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        self._url, self._clock = url, clock

    @property
    def url(self) -> str:
        return self._url

    async def workers(self) -> list[dict[str, Any]]:
        """The router's list: `url`, `id`, `is_healthy` and more of each worker."""
        answer = await get(f"{self.url}/workers", timeout_s=CALL_TIMEOUT_S)
        return list(answer["workers"])

    async def add_worker(self, url: str, *, deadline_s: float = 60.0) -> None:
        """Add an engine; returns when the router lists it as healthy. A listed URL is a no-op.

        The router answers 202 to any URL and joins it in the background, so an unreachable one shows only by not
        being listed: then `EngineLost` names it.
        """
        end = self._clock.now() + deadline_s
        if await self._find(url) is None:
            await request("POST", f"{self.url}/workers", {"url": url}, timeout_s=CALL_TIMEOUT_S)
        while True:
            worker = await self._find(url)
            if worker is not None and worker.get("is_healthy", True):
                logger.info("worker added url=%s", url)
                return
            if self._clock.now() >= end:
                state = "is listed as unhealthy" if worker is not None else "is not listed"
                raise EngineLost(f"worker {url} {state} {deadline_s:g} s after it was added; does it answer /health?")
            await self._clock.sleep(POLL_S)

    async def remove_worker(self, url: str, *, deadline_s: float = 30.0) -> None:
        """Remove an engine; returns when the router no longer lists it. An unknown URL is a no-op."""
        end = self._clock.now() + deadline_s
        worker = await self._find(url)
        if worker is None:
            return
        try:
            await request("DELETE", f"{self.url}/workers/{worker['id']}", None, timeout_s=CALL_TIMEOUT_S)
        except HttpError as error:
            if error.status != 404:
                raise
        while await self._find(url) is not None:
            if self._clock.now() >= end:
                raise EngineLost(f"worker {url} is still listed {deadline_s:g} s after its removal")
            await self._clock.sleep(POLL_S)
        logger.info("worker removed url=%s", url)

    async def _find(self, url: str) -> dict[str, Any] | None:
        wanted = url.rstrip("/")
        return next((w for w in await self.workers() if w["url"].rstrip("/") == wanted), None)
