# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Loading what a user named by import path. Every failure names the flag that the path came from."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from relax.utils.errors import ConfigError


def load_object(path: str, *, flag: str) -> Any:
    """Import `package.module.name` (or `package.module:name`) and return the object.

    A missing module or name raises `ConfigError`. A module that is found but fails while it is imported raises
    `ConfigError` too, from the module's own exception, so that the traceback shows the user's broken line.
    """
    module_path, _, name = path.replace(":", ".").rpartition(".")
    if not module_path or not name:
        raise ConfigError(f"{flag}={path!r} is not an import path; write package.module.name")
    try:
        module = importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_path + ".").startswith(error.name + "."):
            raise ConfigError(
                f"{flag}={path!r}: no module {error.name!r} on the Python path; "
                "start from the folder that holds it, or set PYTHONPATH"
            ) from None
        raise ConfigError(
            f"{flag}={path!r}: module {module_path!r} imports {error.name!r}, which is not installed"
        ) from error
    except Exception as error:  # the user's module is broken: the flag is named, its traceback is kept as the cause
        raise ConfigError(
            f"{flag}={path!r}: importing {module_path!r} failed with {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        known = sorted(key for key in vars(module) if not key.startswith("_"))
        raise ConfigError(f"{flag}={path!r}: {module_path} has no {name!r}; it has {known}")
    return getattr(module, name)


def load_callable(
    path: str, *, flag: str, positional: tuple[str, ...], keywords: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """`load_object`, and check that the object can be called with the arguments named."""
    function = load_object(path, flag=flag)
    check_callable(function, flag=f"{flag}={path!r}", positional=positional, keywords=keywords)
    return function


def check_callable(function: Any, *, flag: str, positional: tuple[str, ...], keywords: tuple[str, ...] = ()) -> None:
    """Raise `ConfigError`, naming `flag`, unless `function(*positional, **keywords)` is a valid call."""
    wanted = f"({', '.join([*positional, *(f'{name}=' for name in keywords)])})"
    if not callable(function):
        raise ConfigError(f"{flag} is a {type(function).__name__}, not a function of {wanted}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # functions written in C publish no signature; the first call tells
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        raise ConfigError(f"{flag} is called as {wanted}, but takes {signature}: {error}") from None
