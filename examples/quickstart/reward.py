# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The verifiable reward of the quick start: 1 for exactly the right answer and then a stop, else 0."""

from __future__ import annotations

from typing import Any

from examples.quickstart.tokenizer import EOS
from relax.utils.types import Sample


def digit_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Exact match. An answer that the length limit cut has no end token and is wrong."""
    finished = sample.status is Sample.Status.COMPLETED
    return float(finished and sample.response.removesuffix(EOS) == str(sample.label))
