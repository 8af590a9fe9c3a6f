# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Reward functions of users, in every form that is accepted, and broken ones."""

import asyncio
import functools
import time

import numpy as np


def plain(args, sample, **kwargs):
    return float(sample.response)


async def asynchronous(args, sample, **kwargs):
    await asyncio.sleep(0.05)
    return 1.0


def scaled(args, sample, scale=1.0):
    return scale * float(sample.response)


partial = functools.partial(scaled, scale=2.0)
short = lambda args, sample: 0.25  # noqa: E731
async_lambda = lambda args, sample: asynchronous(args, sample)  # noqa: E731


class Callable:
    def __call__(self, args, sample):
        return args.bonus + 1.0


class AsyncCallable:
    async def __call__(self, args, sample):
        return 3.0


class Counting:
    """Counts how many calls run at the same time."""

    active = most = 0

    async def __call__(self, args, sample):
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(0.05)
        self.active -= 1
        return 1.0


counting = Counting()
instance, async_instance = Callable(), AsyncCallable()


def loses_its_connection(args, sample):
    if sample.index == 1:
        raise ConnectionResetError("the judge went away")
    return 1.0


def third_raises(args, sample):
    if sample.index == 3:
        raise KeyError("the verifier's own words")
    return 1.0


def sleeps(args, sample):
    if sample.index == 1:
        time.sleep(30)
    return 1.0


async def never_returns(args, sample):
    if sample.index == 1:
        await asyncio.Event().wait()
    return 1.0


async def takes_a_second(args, sample):
    await asyncio.sleep(1.0)
    return 1.0


def blocks_briefly(args, sample):
    time.sleep(0.05)
    return 1.0


def parts(args, sample):
    return {"score": np.float32(0.5), "format": True, "note": "text"}


def by_index(args, sample):
    return [True, 1, np.float32(1.0), np.int64(1), np.ones(1), {"score": 1}, None, float("nan"), "1.0"][sample.index]


def no_sample(args):
    return 1.0


def group_ok(args, samples):
    return [float(s.index) for s in samples]


async def group_dicts(args, samples):
    return [{"score": 1.0, "rank": s.index} for s in samples]


def group_short(args, samples):
    return [1.0]


def group_scalar(args, samples):
    return 1.0


def loops(path):
    while True:
        pass


def dies(path):
    import os

    os._exit(7)


def prints(value):
    print("a line on stdout")
    return value


def raises(value):
    raise ValueError(f"bad {value}")
