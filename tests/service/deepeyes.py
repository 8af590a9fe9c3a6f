# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The DeepEyes example with a script in the model's mouth: a tiny model's own words hold no tool call."""

from __future__ import annotations

from typing import Any

from examples.deepeyes.reward_deepeyes import reward_func
from examples.deepeyes.rollout import ImageEnv, converse
from relax.utils.types import Sample

BOXES = ("[0, 0, 32, 32]", "[32, 16, 96, 80]")


class ScriptedEnv(ImageEnv):
    """Takes the first two answers of sample 1 for calls of the zoom tool, and everything else for what it is."""

    def step(self, text: str) -> tuple[dict[str, Any] | None, list[Any]]:
        if self._sample.index == 1 and self.calls < len(BOXES):
            arguments = f'{{"bbox_2d": {BOXES[self.calls]}}}'
            text = f'<tool_call>{{"name": "image_zoom_in_tool", "arguments": {arguments}}}</tool_call>'
        return super().step(text)


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Every second id ends an answer, so turns have a few tokens."""
    params = {**sampling_params, "stop_token_ids": list(range(20, 320, 2))}
    return await converse(args, sample, params, ScriptedEnv(sample, args))


def score(args: Any, sample: Sample, **kwargs: Any) -> dict[str, float]:
    """The example's parts, and a score that differs between samples, so that there is something to learn."""
    return {**reward_func(args, sample), "score": float(sum(sample.tokens) % 7)}
