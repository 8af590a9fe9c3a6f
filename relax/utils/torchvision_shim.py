# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Let PyPI's torchvision be imported beside a CPU-only torch.

PyPI's torchvision is a CUDA build whose C++ ops cannot load next to the CPU wheel of torch, and its import then fails
because the op schemas that its fake kernels register for do not exist; with it fails every transformers
processor. Declaring the two schemas is enough: the processors use only its pure-Python transforms.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any

from relax.utils import light_imports

_library: Any = None  # keeps the declared schemas alive


def ensure_torchvision() -> None:
    """Declare torchvision's two op schemas on a CPU-only torch, before anything imports torchvision. Idempotent."""
    global _library
    remove_hook()  # looking for the package below must not come back here
    if _library is not None or "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    import torch

    # A CUDA build of torch loads torchvision's real ops, and declaring them twice would fail.
    if torch.version.cuda is not None or torch.version.hip is not None:
        return
    _library = torch.library.Library("torchvision", "DEF")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing; being asked for torchvision is the moment to declare the schemas."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "torchvision":
            ensure_torchvision()


def install_hook() -> None:
    """Declare the schemas when torchvision is first imported. The project's environment calls this at every start
    of Python (a `.pth` file), so that plain transformers scripts work in it; costs no import of torch. Processes of a
    run import other packages in a lighter way from then on, too."""
    light_imports.install_hook()
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())


def remove_hook() -> None:
    """Undo `install_hook`."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _BeforeTorchvision)]
