# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Prompt preparation off the event loop (`--mm-processor-pool-size`): threads for 0, else that many processes.

Results of a process come back through one block of shared memory: arrays are pickled out of band, so features cost two
memory copies, however large, and the pipe carries only the rest.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from relax.utils.errors import ConfigError, InfrastructureError
from relax.utils.stacks import answer_as

MAX_THREADS = 8  # of the thread form; decoding releases the GIL, the rest does not

_state: Any = None  # what `setup` made, one in each worker process


class ProcessorPool:
    """Runs blocking functions off the event loop.

    With `setup`, each worker builds a state once (in the thread form there is one for all threads) and every function
    gets it as first argument; so a tokenizer is built once a process instead of travelling with each call. `setup`
    and the functions of a process pool must be importable.

        pool = ProcessorPool(2, setup=functools.partial(make_builder, folder))
        prepared = await pool.run(PromptBuilder.build, row)
    """

    def __init__(self, size: int, *, setup: Callable[[], Any] | None = None, threads: int | None = None) -> None:
        """`threads` is the size of the thread form; None: by the machine."""
        if size < 0:
            raise ConfigError(f"--mm-processor-pool-size must be >= 0, got {size}")
        self._setup = setup
        self._processes = size > 0
        self._executor: Executor
        if self._processes:
            # Spawned, because a fork copies the locks that other threads hold at that moment.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(size, mp_context=context, initializer=_start, initargs=(setup,))
        else:
            threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
            self._executor = ThreadPoolExecutor(threads, thread_name_prefix="relax-prepare")
            self._thread_state = setup() if setup is not None else None

    async def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 600.0) -> Any:
        """The function's result; its exceptions come through. InfrastructureError when a worker died or hangs."""
        loop = asyncio.get_running_loop()
        if self._processes:
            future = loop.run_in_executor(self._executor, _work, self._setup is not None, function, args)
        else:
            first = (self._thread_state,) if self._setup is not None else ()
            future = loop.run_in_executor(self._executor, function, *first, *args)
        try:
            result = await asyncio.wait_for(future, timeout_s)
        except BrokenProcessPool as error:
            raise InfrastructureError(
                "a worker of --mm-processor-pool-size died while preparing prompts (out of memory?); see its log"
            ) from error
        except TimeoutError as error:
            if future.done() and not future.cancelled():
                raise  # the function's own
            raise InfrastructureError(f"preparing a prompt took more than {timeout_s:g} s") from error
        return _unpacked(result) if self._processes else result

    def close(self) -> None:
        """Finish running calls and stop the workers. Idempotent."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def __aenter__(self) -> ProcessorPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


# --------------------------------------------------------------------------- in the worker process


def _start(setup: Callable[[], Any] | None) -> None:
    global _state
    # One thread a process: the pool itself is the parallelism.
    os.environ["OMP_NUM_THREADS"] = "1"
    answer_as("prepare")
    _state = setup() if setup is not None else None


def _work(with_state: bool, function: Callable[..., Any], args: tuple[Any, ...]) -> _Packed:
    return _packed(function(_state, *args) if with_state else function(*args))


class _Packed:
    """A pickled outline, and the shared block that holds its buffers one after the other."""

    def __init__(self, outline: bytes, block: str | None, sizes: list[int]) -> None:
        self.outline = outline
        self.block = block
        self.sizes = sizes


def _packed(value: Any) -> _Packed:
    buffers: list[pickle.PickleBuffer] = []
    outline = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = [view.nbytes for view in views]
    if not sum(sizes):
        return _Packed(pickle.dumps(value, protocol=5), None, [])
    block = SharedMemory(create=True, size=sum(sizes))
    target: Any = block.buf
    for start, view in zip(_starts(sizes), views, strict=True):
        target[start : start + view.nbytes] = view
    name = block.name
    del target
    block.close()  # the reader unlinks it
    return _Packed(outline, name, sizes)


def _unpacked(packed: _Packed) -> Any:
    if packed.block is None:
        return pickle.loads(packed.outline)
    block = SharedMemory(name=packed.block)
    source: Any = block.buf
    try:
        spans = zip(_starts(packed.sizes), packed.sizes, strict=True)
        copies = [bytearray(source[start : start + size]) for start, size in spans]
    finally:
        del source
        block.close()
        block.unlink()
    return pickle.loads(packed.outline, buffers=copies)


def _starts(sizes: list[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)][:-1]
