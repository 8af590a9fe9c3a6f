# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The worker process of `worker_pool.py`: reads calls from stdin, writes results to stdout, ends when stdin does.

A frame is a 4-byte little-endian length and a pickle. Calls: `("load", path)` and `("call", path, args, timeout_s)`;
answers: `("ok", value)` and `("error", traceback text)`.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from typing import Any, BinaryIO

from relax.utils.stacks import answer_as

MEMORY_LIMIT = 4 << 30  # bytes of address space: a hostile power tower ends this process, not the machine
GRACE_S = 5.0  # after the owner's limit, this process ends by itself, also when its owner is gone


def read_frame(stream: BinaryIO) -> Any | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    return pickle.loads(stream.read(struct.unpack("<I", head)[0]))


def write_frame(stream: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def answer(request: tuple[Any, ...]) -> tuple[str, Any]:
    kind, path, *rest = request
    try:
        function = resolve(path)
        if kind == "load":
            return "ok", None
        arguments, timeout_s = rest
        signal.setitimer(signal.ITIMER_REAL, timeout_s + GRACE_S)  # default action: end the process
        return "ok", function(*arguments)
    except Exception:  # the owner is told, with the traceback
        return "error", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides when this process ends
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    answer_as("reward-worker")
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a print inside a reward function must not break the frames
    while (request := read_frame(requests)) is not None:
        result = answer(request)
        try:
            write_frame(answers, result)
        except (pickle.PicklingError, TypeError, AttributeError) as error:  # the owner is told
            write_frame(answers, ("error", f"the result cannot be sent to the owner: {error!r}"))


if __name__ == "__main__":
    sys.exit(main())
