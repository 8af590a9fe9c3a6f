# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A pytest without the start-up: runs the plain test functions of a module up to the first failure.

It knows functions `test_*`, `parametrize` marks and Hypothesis. A test that asks for a fixture is an error here.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any


def passes(module: str) -> bool:
    """Whether every test of the module passes. Importing it may fail too: that is a failure."""
    try:
        for call in calls(importlib.import_module(module)):
            call()
    except Exception:  # whatever a planted fault makes of a test is its discovery
        return False
    return True


def calls(module: Any) -> Iterator[Callable[[], None]]:
    """Every test of an imported module with every set of its parameters, in the order of the file."""
    for name, function in list(vars(module).items()):
        if name.startswith("test_") and inspect.isfunction(function):
            for values in parameter_sets(function):
                yield lambda function=function, values=values: function(**values)


def parameter_sets(function: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The product of all `parametrize` marks of a function."""
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
    choices = []
    for mark in marks:
        names, values = mark.args
        single = isinstance(names, str) and "," not in names
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        choices.append([dict(zip(names, (value,) if single else value, strict=True)) for value in values])
    for chosen in itertools.product(*choices):
        yield {name: value for pairs in chosen for name, value in pairs.items()}
