# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Roles in other processes, called as if they were here. Errors keep their class; a dead process is `RoleLost`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from relax.utils.errors import InfrastructureError, InternalError, RelaxError, RoleLost


class RemoteRole:
    """One role in one worker. Any method of the role can be awaited: `await handle.report(4, 60.0)`."""

    def __init__(self, role: str, worker: Any, log_path: Path | None = None) -> None:
        self._role, self._worker, self._log_path = role, worker, log_path

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)

        async def call(*args: Any) -> Any:
            return await self._await(self._worker.call.remote(self._role, method, args), method)

        return call

    async def _await(self, reference: Any, method: str) -> Any:
        return await translated(reference, f"{self._role}.{method}", self._log_path)


class RemoteGroup:
    """The ranks of one role: every call goes to all of them, rank 0 answers, the first failure is raised."""

    def __init__(self, ranks: Sequence[RemoteRole]) -> None:
        self._ranks = tuple(ranks)

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)

        async def call(*args: Any) -> Any:
            results = await asyncio.gather(*(getattr(rank, method)(*args) for rank in self._ranks))
            return results[0]

        return call


async def translated(reference: Any, what: str, log_path: Path | None = None) -> Any:
    """Await a Ray reference; Relax's own errors come out as they were raised, with the remote traceback as a note."""
    from ray import exceptions

    try:
        return await reference
    except exceptions.RayTaskError as error:
        raise of_worker(error.cause, str(error), what) from None
    except exceptions.RayActorError as error:
        log = f"; its log is {log_path}" if log_path else ""
        raise RoleLost(f"the process of {what} died: {str(error).splitlines()[0]}{log}") from None
    except exceptions.RayError as error:
        raise InfrastructureError(f"{what}: {type(error).__name__}: {str(error).splitlines()[0]}") from error


def of_worker(cause: BaseException, remote_traceback: str, what: str) -> RelaxError:
    """What the driver raises for an error of a worker: Relax's own as it was, others by whose fault they are."""
    if not isinstance(cause, RelaxError):
        kind = InfrastructureError if isinstance(cause, (OSError, MemoryError)) else InternalError
        cause = kind(f"{what} failed: {type(cause).__name__}: {cause}")
    cause.add_note(f"raised in {what}:\n{remote_traceback}")
    return cause
