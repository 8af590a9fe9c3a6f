# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Import tensordict without `torch._dynamo` in the processes of a run.

It pulls the compiler in only to mark functions for `torch.compile`, at 2 CPU seconds a process, and TransferQueue
imports it in the driver and in each of its actors. A run never compiles what it marks.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from types import ModuleType
from typing import Any

SWITCH = "RELAX_LIGHT_IMPORTS"  # "1" in every process of a run; plain scripts of the same environment are left alone
PACKAGE = "tensordict"
MARKS = ("allow_in_graph", "assume_constant_result")  # of torch.compiler: return the function that they mark


def install_hook() -> None:
    """Import `PACKAGE` in this way when it is first imported, where `SWITCH` is set. Idempotent."""
    if os.environ.get(SWITCH) == "1" and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Gives the spec that another finder gives, with a loader that leaves the marks out."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != PACKAGE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module = _unmarked(spec.loader.exec_module)
                return spec
        return None


def _unmarked(execute: Any) -> Any:
    def exec_module(module: ModuleType) -> None:
        import torch

        marks = {name: getattr(torch.compiler, name) for name in MARKS}
        try:
            for name in marks:
                setattr(torch.compiler, name, _same)
            execute(module)
        finally:
            for name, mark in marks.items():
                setattr(torch.compiler, name, mark)

    return exec_module


def _same(function: Any) -> Any:
    return function
