# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Stand-ins for what SGLang takes for granted and a CPU-only torch does not have."""

from __future__ import annotations

import functools
import importlib.machinery
import math
import sys
import types
from typing import Any

from relax.utils.torchvision_shim import ensure_torchvision

# Makers of tensors that SGLang calls with pin_memory=True.
_PINNING = ("tensor", "empty", "zeros", "ones", "arange", "full")


def install() -> None:
    """Before anything imports sglang. Does nothing where torch sees a GPU."""
    import torch

    ensure_torchvision()
    if torch.cuda.is_available():
        return
    _ignore_pinning(torch)
    _replace_torchaudio()


def _ignore_pinning(torch: Any) -> None:
    """Page-locked memory speeds up copies to a GPU; without one torch refuses to make it."""
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    for name in _PINNING:
        setattr(torch, name, _without_pinning(getattr(torch, name)))


def _without_pinning(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return call


def _replace_torchaudio() -> None:
    """torchaudio's wheel loads CUDA libraries; SGLang needs its resampling only."""
    audio, functional = types.ModuleType("torchaudio"), types.ModuleType("torchaudio.functional")
    audio.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None, is_package=True)
    functional.__spec__ = importlib.machinery.ModuleSpec("torchaudio.functional", None)
    audio.__version__ = "0"  # type: ignore[attr-defined]
    functional.resample = resample  # type: ignore[attr-defined]
    audio.functional = functional  # type: ignore[attr-defined]
    sys.modules["torchaudio"], sys.modules["torchaudio.functional"] = audio, functional


def resample(waveform: Any, orig_freq: int, new_freq: int) -> Any:
    """A float32 waveform [..., samples] at another rate, by a polyphase filter."""
    import scipy.signal
    import torch

    common = math.gcd(int(orig_freq), int(new_freq))
    up, down = int(new_freq) // common, int(orig_freq) // common
    return torch.from_numpy(scipy.signal.resample_poly(waveform.numpy(), up, down, axis=-1)).float()
