# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rendered samples ahead of their use: in chunks, by several workers, handed out in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
Render = Callable[[Sequence[int]], Awaitable[Sequence[T]]]


class Prefetcher(Generic[T]):
    """`get(0), get(1), ...`: items in order, of which up to `buffer` beyond the one asked for are made ahead.

    What is handed out does not depend on `buffer`, `chunk` and `workers`: an item is a function of its number. Numbers
    below one that was asked for are forgotten. `end` bounds what is made; asking beyond it is the caller's mistake.
    """

    def __init__(self, render: Render[T], *, buffer: int, chunk: int, workers: int, end: int | None = None) -> None:
        self._render, self._buffer, self._chunk, self._end = render, buffer, chunk, end
        self._permits = asyncio.Semaphore(workers)
        self._chunks: dict[int, asyncio.Task[Sequence[T]]] = {}

    def start(self, number: int) -> None:
        """Make what is due once `number` is next; returns at once."""
        last = number + self._buffer
        if self._end is not None:
            last = max(number, min(last, self._end - 1))
        for chunk in range(number // self._chunk, last // self._chunk + 1):
            if chunk not in self._chunks:
                task = asyncio.create_task(self._make(chunk), name=f"sft.render-{chunk}")
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # told by `get`
                self._chunks[chunk] = task
        for chunk in [chunk for chunk in self._chunks if chunk < number // self._chunk]:
            self._chunks.pop(chunk).cancel()

    async def get(self, number: int) -> T:
        """Item `number`; an error in making it comes out here."""
        self.start(number)
        chunk = number // self._chunk
        return (await asyncio.shield(self._chunks[chunk]))[number - chunk * self._chunk]

    async def close(self) -> None:
        """Stop what is being made."""
        tasks, self._chunks = list(self._chunks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, chunk: int) -> Sequence[T]:
        first = chunk * self._chunk
        last = first + self._chunk if self._end is None else min(first + self._chunk, max(self._end, first + 1))
        async with self._permits:
            return await self._render(range(first, last))
