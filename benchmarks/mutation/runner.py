# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Run the property tests against one mutant: a forked child loads the changed source in the place of the file.

The parent imports what is heavy (torch, pytest, hypothesis) and nothing of `relax.algorithms`, so a child starts in
milliseconds and sees nothing but its own mutant. Tests are called by `plain`: pytest costs a second.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


class _Source(importlib.abc.Loader):
    def __init__(self, text: str, path: Path) -> None:
        self._text, self._path = text, path

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self._path)
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, text: str, path: Path) -> None:
        self._name, self._loader = name, _Source(text, path)

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self._loader) if name == self._name else None


def import_heavy() -> None:
    import hypothesis
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    hypothesis.settings.register_profile("mutants", database=None, max_examples=15, phases=[hypothesis.Phase.generate])
    hypothesis.settings.load_profile("mutants")
    torch.set_num_threads(1)
    torch.zeros(1, requires_grad=True).sum().backward()
    loaded = [name for name in sys.modules if name.startswith("relax.algorithms")]
    assert not loaded, f"{loaded} would stay as they are in every child"


def killed(path: str, text: str, modules: Sequence[str], cpu_s: int) -> bool:
    """Whether a test of `modules` fails, or the CPU seconds run out. `text` replaces the file `path`.

    The modules are run one after the other up to the first failure.
    """
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        os._exit(_child(path, text, modules))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _child(path: str, text: str, modules: Sequence[str]) -> int:
    os.chdir(ROOT)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    module = path.removesuffix(".py").replace("/", ".")
    sys.meta_path.insert(0, _Finder(module, text, ROOT / path))
    from benchmarks.mutation.plain import passes

    return 0 if all(passes(name) for name in modules) else 1
