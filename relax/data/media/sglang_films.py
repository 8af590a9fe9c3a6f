# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Films as SGLang 0.5.23 hands them to a Qwen model, so that the trainer computes with the very same frames.

SGLang cuts the numbers of evenly spaced frames off instead of rounding them, resizes frames to sides of multiples of
28 before the model's processor sees them, and leaves out the frame rate, so that an omni processor takes one frame a
second. None of it can be set from outside.
"""

from __future__ import annotations

import numpy as np

FACTOR = 28  # sides of frames are multiples of it


def frame_numbers(
    total: int, source_fps: float, *, fps: float, min_frames: int, max_frames: int, factor: int
) -> tuple[int, ...]:
    """Numbers of the frames that are taken; empty for a film that SGLang refuses, because it has too few."""
    least, most = -(-min_frames // factor) * factor, max_frames // factor * factor
    wanted = min(max(total / source_fps * fps, least), most, total)
    count = int(wanted // factor) * factor
    return tuple(np.linspace(0, total - 1, count, dtype=np.int64).tolist())


def sides(height: int, width: int) -> tuple[int, int]:
    """Size of a frame after SGLang's own resizing: each side the nearest multiple of 28, at least 28."""
    return max(FACTOR, round(height / FACTOR) * FACTOR), max(FACTOR, round(width / FACTOR) * FACTOR)


def resized(frames: np.ndarray) -> np.ndarray:
    """uint8 frames [T, H, W, 3] in that size, by the same function of torchvision."""
    size = sides(*frames.shape[1:3])
    if size == frames.shape[1:3]:
        return frames
    import torch
    from torchvision.transforms import InterpolationMode, functional

    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    return functional.resize(pixels, list(size), interpolation=InterpolationMode.BILINEAR).permute(0, 2, 3, 1).numpy()
