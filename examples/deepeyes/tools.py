# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a DeepEyes model may do with its image: zoom into a box, turn it. A call is JSON in `<tool_call>` tags."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
MIN_SIDE = 28  # pixels; a smaller box is widened around its centre, as one patch of the model would show nothing
MAX_RATIO = 100  # of a picture's sides; the image processors refuse more


class ToolError(ValueError):
    """A call that cannot be done; its text is the model's observation."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


def find_call(text: str) -> ToolCall | None:
    """The last call of an answer, None without one. Raises ToolError when it is not what a call must be."""
    found = _CALL.findall(text)
    if not found:
        if "<tool_call>" in text:
            raise ToolError("the tool call is not closed by </tool_call>")
        return None
    try:
        call = json.loads(found[-1])
    except json.JSONDecodeError as error:
        raise ToolError(f"the tool call is not JSON: {error}") from error
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict) or call.get("name") not in TOOLS:
        raise ToolError(f'a tool call is {{"name": NAME, "arguments": {{...}}}} with a NAME of {", ".join(TOOLS)}')
    return ToolCall(call["name"], call["arguments"])


def use(call: ToolCall, image: Any, scale: int | None = None) -> Any:
    """The PIL image that the call makes of `image`."""
    return TOOLS[call.name](image, call.arguments, scale)


def zoom(image: Any, arguments: dict[str, Any], scale: int | None) -> Any:
    """The part of the image in `bbox_2d` [left, top, right, bottom]: pixels, or parts of `scale` of each side."""
    left, top, right, bottom = box(_numbers(arguments.get("bbox_2d"), 4, "bbox_2d"), image.size, scale)
    return image.crop((left, top, right, bottom))


def rotate(image: Any, arguments: dict[str, Any], scale: int | None) -> Any:
    """The image turned by `angle` degrees against the clock, all of it visible."""
    (angle,) = _numbers([arguments.get("angle")], 1, "angle")
    return image.rotate(angle % 360, expand=True, fillcolor=(255, 255, 255))


TOOLS = {"image_zoom_in_tool": zoom, "image_rotate_tool": rotate}


def _numbers(value: Any, count: int, name: str) -> list[float]:
    good = isinstance(value, list) and len(value) == count
    if not good or not all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in value
    ):
        raise ToolError(f"{name} must be {count} numbers, got {value!r:.80}")
    return [float(v) for v in value]


def box(corners: list[float], size: tuple[int, int], scale: int | None) -> tuple[int, int, int, int]:
    """Whole pixels inside an image of `size`, at least `MIN_SIDE` wide and high where the image is."""
    width, height = size
    if scale is not None:
        corners = [corner * side / scale for corner, side in zip(corners, (width, height) * 2, strict=True)]
    left, right = _span(corners[0], corners[2], width, "x")
    top, bottom = _span(corners[1], corners[3], height, "y")
    if max(right - left, bottom - top) > MAX_RATIO * min(right - left, bottom - top):
        raise ToolError(f"the box {corners} is more than {MAX_RATIO} times as long as wide")
    return left, top, right, bottom


def _span(low: float, high: float, size: int, axis: str) -> tuple[int, int]:
    """[low, high) cut to the image and widened to MIN_SIDE."""
    first, last = math.floor(max(low, 0.0)), math.ceil(min(high, float(size)))
    if low >= high or first >= last:
        raise ToolError(f"{axis} from {low:g} to {high:g} holds nothing of an image with {size} pixels")
    missing = min(MIN_SIDE, size) - (last - first)
    if missing > 0:
        first = min(max(0, first - missing // 2), size - min(MIN_SIDE, size))
        last = first + min(MIN_SIDE, size)
    return first, last
