# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The table of checks, and how one is run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from relax.backends.engine_client import EngineRefused
from relax.utils.errors import InfrastructureError

if TYPE_CHECKING:
    from relax.backends.conformance.context import Context

Run = Callable[["Context"], Awaitable[None]]
Verdict = Literal["honoured", "fails", "not offered", "not asked"]
CHECK_TIMEOUT_S = 120.0


class CheckFailed(AssertionError):
    """The server does not do what the check's name says."""


class NotOffered(Exception):
    """The server's own information says that it does not have this; the text says which word of it."""


class NotAsked(Exception):
    """The check needs what the caller did not give, for example the model folder."""


@dataclass(frozen=True)
class Check:
    name: str  # words joined by hyphens; the id of the test
    area: str
    run: Run
    says: str  # what it holds a server to


@dataclass(frozen=True)
class Outcome:
    check: Check
    verdict: Verdict
    detail: str = ""


def named(area: str, table: list[Check]) -> Callable[[Run], Run]:
    """Decorator: put a coroutine function into `table` under its name, with the first line of its docstring."""

    def add(function: Run) -> Run:
        says = (function.__doc__ or "").strip().splitlines()[0]
        table.append(Check(function.__name__.replace("_", "-"), area, function, says))
        return function

    return add


def require(condition: bool, what: str, got: Any = None) -> None:
    """Raise CheckFailed when `condition` is false."""
    if not condition:
        raise CheckFailed(what if got is None else f"{what}, got {got!r}")


async def refused(call: Awaitable[Any], what: str, statuses: range = range(400, 500)) -> str:
    """The server's words for refusing `call`; CheckFailed when it accepts it or answers with another status."""
    try:
        answer = await call
    except EngineRefused as error:
        require(
            error.status in statuses,
            f"{what}: refused with a status of {statuses.start} to {statuses.stop - 1}",
            error,
        )
        return str(error)
    if isinstance(answer, dict) and answer.get("success") is False:
        return str(answer.get("message"))
    raise CheckFailed(f"{what} was accepted")


async def run_check(check: Check, context: Context) -> Outcome:
    """One check, bounded; the server is then made to serve again, whatever happened."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check.run(context)
    except CheckFailed as error:
        return Outcome(check, "fails", str(error))
    except NotOffered as error:
        return Outcome(check, "not offered", str(error))
    except NotAsked as error:
        return Outcome(check, "not asked", str(error))
    except TimeoutError:
        return Outcome(check, "fails", f"no end within {CHECK_TIMEOUT_S:g} s")
    except (EngineRefused, InfrastructureError) as error:
        return Outcome(check, "fails", str(error))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        return Outcome(check, "fails", f"the answer has another form: {type(error).__name__}: {error}")
    finally:
        await context.calm_down()
    return Outcome(check, "honoured")
