# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Announces the CPU platform to SGLang as an installed plug-in would, without installing one.

SGLang finds platforms by the entry points of the group `sglang.srt.platforms`. `importlib.metadata` asks every finder
on `sys.meta_path` for distributions; the one here answers with a distribution that exists in memory only.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from typing import Any

GROUP = "sglang.srt.platforms"
NAME = "relax_cpu"
_ACTIVATE = "relax.backends.sglang.cpu.entry_point:activate"
_PLATFORM = "relax.backends.sglang.cpu.platform.RelaxCpuPlatform"
_FILES = {
    "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n",
    "entry_points.txt": f"[{GROUP}]\n{NAME} = {_ACTIVATE}\n",
}


def activate() -> str | None:
    """The platform's class for SGLang to import; None leaves a machine with GPUs to SGLang's own."""
    import torch

    return None if torch.cuda.is_available() else _PLATFORM


class _InMemory(importlib.metadata.Distribution):
    def read_text(self, filename: str) -> str | None:
        return _FILES.get(filename)

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"{NAME} has no files, asked for {path}")


class _Finder(importlib.metadata.DistributionFinder):
    """Finds one distribution and no module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        return [_InMemory()] if getattr(context, "name", None) in (None, NAME) else []


def install() -> None:
    """Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
