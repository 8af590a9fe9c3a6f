# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rewards of the benchmark workloads."""

from __future__ import annotations

import asyncio
import math
import random
import re
from typing import Any

from relax.utils.types import Sample

_ANSWER = re.compile(r"#(-?\d+)\s*$")


def sum_reward(args: Any, sample: Sample, **_: Any) -> float:
    """1.0 when the digits after the last `#` end the response and equal the label (workload W1)."""
    if sample.status is not Sample.Status.COMPLETED:
        return 0.0
    match = _ANSWER.search(sample.response.removesuffix("<|eos|>"))
    return float(match is not None and match.group(1) == str(sample.label))


def checksum_reward(args: Any, sample: Sample, **_: Any) -> float:
    """1.0 for a quarter of all responses: a reward that differs within most groups of an untrained model."""
    return float(sum(sample.tokens[sample.prompt_length :]) % 4 == 0)


async def slow_sum_reward(args: Any, sample: Sample, **rest: Any) -> float:
    """`sum_reward` after a log-normal time (median 1 s, sigma 0.6, at most 5 s), fixed by the sample (W1-lat)."""
    chance = random.Random(f"{sample.group_index}.{sample.index}")
    await asyncio.sleep(min(5.0, math.exp(0.6 * chance.gauss(0.0, 1.0))))
    return sum_reward(args, sample, **rest)


def even_share(args: Any, sample: Sample, **_: Any) -> float:
    """Share of even ids among the response's tokens: what a random model can learn in a few steps."""
    ids = sample.tokens[len(sample.tokens) - sample.response_length :]
    return sum(token % 2 == 0 for token in ids) / len(ids) if ids else 0.0
