# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A reward that a judge model gives."""

from __future__ import annotations

from typing import Any

from examples.generate_reward_model.judge import RIGHT, question
from examples.quickstart.tokenizer import EOS
from relax.engine.rewards.judges import GenRMClient
from relax.utils.types import Sample


async def judged_answer(args: Any, sample: Sample, **kwargs: Any) -> float:
    """1 when the judge says so. An answer that the length limit cut is not shown to it and is wrong."""
    if sample.status is not Sample.Status.COMPLETED:
        return 0.0
    text = question(str(sample.label), sample.response.removesuffix(EOS))
    return float(await GenRMClient().generate([{"role": "user", "content": text}]) == RIGHT)
