# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Run the property tests against one mutant: a forked child loads the changed source in the place of the file.

The parent imports what is heavy (torch, pytest, hypothesis) and nothing of `relax.algorithms`, so a child starts in
milliseconds and sees nothing but its own mutant.
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
SURVIVED, KILLED, BROKEN = 0, 1, 70


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
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    torch.zeros(1, requires_grad=True).sum().backward()
    loaded = [name for name in sys.modules if name.startswith("relax.algorithms")]
    assert not loaded, f"{loaded} would stay as they are in every child"


def run_tests(path: str, text: str, tests: Sequence[str], cpu_s: int, *, shown: bool = False) -> int:
    """KILLED when a test failed or the CPU seconds ran out, SURVIVED when all passed. `text` replaces the file `path`.

    `tests` are run one after the other up to the first failure.
    """
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        os._exit(_child(path, text, tests, shown))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return KILLED if code < 0 else code


def _child(path: str, text: str, tests: Sequence[str], shown: bool) -> int:
    import pytest

    if not shown:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    os.chdir(ROOT)
    module = path.removesuffix(".py").replace("/", ".")
    sys.meta_path.insert(0, _Finder(module, text, ROOT / path))
    words = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--no-header", "--tb=short" if shown else "--tb=no"]
    for file in tests:
        code = pytest.main([*words, file])
        # 1: a test failed; 2: interrupted by an error while collecting, which an import that fails makes
        if code != 0:
            return {1: KILLED, 2: KILLED}.get(int(code), BROKEN)
    return SURVIVED
