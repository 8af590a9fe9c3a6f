# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every error that ends a run, its exit code, and what may be tried again.

RelaxError
  ConfigError        2  run      wrong flag, file or combination; nothing has started
  DataError          2  run      a row or a medium is wrong; names file and row
    MediaError       2  run      a medium of a row is missing, unreadable or without its place
  UserCodeError      3  request  a user's hook failed; names import path and sample
  Divergence         4  run      NaN or infinite loss or gradient
  InfrastructureError 5 role
    Stuck            5  run
    BusTimeout       5  request
    BusLost          5  run
    EngineLost       5  request
    WeightSyncError  5  request
    RoleLost         5  role
  MetricConflict     1  run      two roles report different values of one metric
  InternalError      1  none     our own invariant is broken
"""

from __future__ import annotations

from typing import Any, Literal

Retry = Literal["none", "request", "role", "run"]


class RelaxError(Exception):
    """Base of all errors that Relax raises on purpose."""

    exit_code: int = 1
    retry: Retry = "none"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders; classes with arguments of their own could not be unpickled from `args` alone.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[RelaxError], args: tuple[Any, ...], attributes: dict[str, Any]) -> RelaxError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(attributes)
    return error


class ConfigError(RelaxError, ValueError):
    """A flag, or a combination of flags, is wrong. The message names the flags and what to do."""

    exit_code = 2
    retry: Retry = "run"


class DataError(RelaxError, ValueError):
    """A data row or a medium is wrong. `where` is `file:row`."""

    exit_code = 2
    retry: Retry = "run"

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class MediaError(DataError):
    """A medium of a row is missing, unreadable, or does not match its placeholder."""


class UserCodeError(RelaxError):
    """A user's hook failed. Carries the hook's import path and the sample it failed on."""

    exit_code = 3
    retry: Retry = "request"

    def __init__(self, message: str, *, path: str, sample: str | None = None) -> None:
        super().__init__(f"{path}{f' (sample {sample})' if sample else ''}: {message}")
        self.path = path
        self.sample = sample


class Divergence(RelaxError):
    """Training left the finite numbers; the last good checkpoint stays."""

    exit_code = 4
    retry: Retry = "run"


class InfrastructureError(RelaxError):
    """A process, a network call or a device failed."""

    exit_code = 5
    retry: Retry = "role"


class Stuck(InfrastructureError):
    """Nothing has moved for too long. What every process was doing is in the run folder, `stacks/when-stuck.txt`."""

    retry: Retry = "run"


class BusTimeout(InfrastructureError):
    """The bus did not deliver in time. The message names partition, table, uids and the producer that owes them."""

    retry: Retry = "request"


class BusLost(InfrastructureError):
    """A process of the data bus has died, and the rows with it. The run ends; a resume refills it from the trace."""

    retry: Retry = "run"


class EngineLost(InfrastructureError):
    """An inference engine does not answer or has died."""

    retry: Retry = "request"


class WeightSyncError(InfrastructureError):
    """A weight version could not be installed; the engine keeps its old version."""

    retry: Retry = "request"


class RoleLost(InfrastructureError):
    """A role's worker has died."""

    retry: Retry = "role"


class MetricConflict(RelaxError, ValueError):
    """Two roles say different things about one metric of a step. The first one's value stays; the run goes on."""

    retry: Retry = "run"


class InternalError(RelaxError):
    """An invariant of Relax itself does not hold: please report it."""
