# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Thinking with images (DeepEyes, arXiv 2505.14362): the model zooms into its image in several turns, then answers.

    --custom-generate-function-path examples.deepeyes.rollout.generate --max-turns 6

An answer with a tool call is followed by the picture that the tool made; one without a call, or with `<answer>`, is
the last. What tools say has loss mask 0.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from examples.deepeyes.tools import ToolError, find_call, use
from relax.data.media.decode import decode_image
from relax.data.media.items import load_media
from relax.engine.rollout.turns import Turns
from relax.utils.types import Sample

NEXT = "Think about what you see now. Call a tool again if you need to, else give your answer in <answer> tags."


class ImageEnv:
    """Runs the tool calls of one sample on its first image, and counts them."""

    def __init__(self, sample: Sample, args: Any) -> None:
        self._sample, self._image = sample, None
        self._scale: int | None = args.deepeyes_box_scale if "deepeyes_box_scale" in args else None
        self.calls, self.errors = 0, 0

    def step(self, text: str) -> tuple[dict[str, Any] | None, list[Any]]:
        """(message that follows an answer, or None when it was the last; images of the message). Blocking."""
        if "<answer>" in text:
            return None, []
        try:
            call = find_call(text)
            if call is None:
                return None, []
            picture = use(call, self._picture(), self._scale)
        except ToolError as error:
            self.errors += 1
            return said(f"Error: {error}."), []
        self.calls += 1
        return said("", image=True), [picture]

    def _picture(self) -> Any:
        if self._image is None:
            where = f"sample {self._sample.group_index}.{self._sample.index}"
            images = (self._sample.multimodal_inputs or {}).get("image")
            if not images:
                raise ToolError("there is no image")
            item = load_media("image", images[0], folder=Path(), where=where)
            self._image = decode_image(item.data, where=where)
        return self._image


def said(text: str, *, image: bool = False) -> dict[str, Any]:
    """A tool's answer as a user message."""
    parts = [{"type": "text", "text": "<tool_response>" + text}, *([{"type": "image"}] if image else [])]
    return {"role": "user", "content": [*parts, {"type": "text", "text": f"</tool_response>\n{NEXT}"}]}


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """See the module."""
    return await converse(args, sample, sampling_params, ImageEnv(sample, args))


async def converse(args: Any, sample: Sample, sampling_params: dict[str, Any], env: ImageEnv) -> Sample:
    """Turns between the model and an environment until one of them ends it, or `--max-turns` answers are there."""
    turns = Turns(args, sample)
    for turn in range(args.max_turns):
        text = await turns.ask(sampling_params)
        if turns.ended or turn == args.max_turns - 1:
            break
        message, images = await asyncio.to_thread(env.step, text)
        if message is None or not await turns.observe(message, images):
            break
    sample.metadata["deepeyes"] = {"turns": turn + 1, "tool_calls": env.calls, "tool_errors": env.errors}
    return sample
