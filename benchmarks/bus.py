# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Cost of moving one rollout over the data bus: 256 blocks of 8k tokens, put then get, next to a plain memory copy.

    OMP_NUM_THREADS=1 python benchmarks/bus.py [--groups 256] [--tokens 8192] [--rounds 5] [--local-only] [--no-bell]

A block holds tokens int32, log-probs float32 and loss mask uint8. Rounds are interleaved; medians are printed. CPU
seconds of TransferQueue are those of all processes (driver, controller, storage unit). The last line is
`RESULT {json}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from relax.distributed.bus.base import Block, Bus
from relax.distributed.bus.local import LocalBus

PRODUCERS = {"rollout": "rollout"}


def make_blocks(groups: int, tokens: int) -> list[Block]:
    rng = np.random.default_rng(0)
    return [
        Block(
            uid,
            {
                "tokens": rng.integers(0, 150_000, tokens, dtype=np.int32),
                "rollout_logprobs": rng.standard_normal(tokens, dtype=np.float32),
                "loss_mask": np.ones(tokens, np.uint8),
            },
        )
        for uid in range(groups)
    ]


def copy_floor(blocks: Iterable[Block]) -> float:
    """Seconds to copy every array once, as the local bus must."""
    start = time.perf_counter()
    kept = [[np.array(array, copy=True) for array in block.columns.values()] for block in blocks]
    seconds = time.perf_counter() - start
    del kept
    return seconds


async def measure(bus: Bus, blocks: list[Block], partition: str, cpu: Callable[[], float]) -> dict[str, float]:
    fresh = [Block(block.uid, block.columns) for block in blocks]  # no digest kept from an earlier round
    start_cpu, start = cpu(), time.perf_counter()
    await bus.put(partition, "rollout", fresh)
    middle = time.perf_counter()
    got = await bus.get(partition, ["rollout"], [block.uid for block in blocks], deadline_s=60)
    end = time.perf_counter()
    assert len(got["rollout"]) == len(blocks)
    result = {"put_ms": 1e3 * (middle - start), "get_ms": 1e3 * (end - middle), "cpu_s": cpu() - start_cpu}
    await bus.drop(partition)
    return result


async def idle_wait(bus: Bus, seconds: float, cpu: Callable[[], float]) -> float:
    """CPU seconds per second of a reader that waits for a block that does not come."""
    start = cpu()
    try:
        await bus.get("waiting", ["rollout"], [0], deadline_s=seconds)
    except Exception as error:  # the deadline is the point; anything else would show in its text
        assert "owed by" in str(error), error
    return (cpu() - start) / seconds


def own_cpu() -> float:
    return time.process_time()


def tree_cpu() -> float:
    """CPU seconds of this process and of TransferQueue's actors."""
    import psutil

    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        try:
            if "TransferQueue" in process.name() or "SimpleStorage" in process.name():
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:  # ended while we looked
            continue
    return total


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


async def bench_local(blocks: list[Block], rounds: int) -> dict[str, float]:
    bus, rows, floors = LocalBus(PRODUCERS), [], []
    for place in range(rounds + 1):
        floors.append(1e3 * copy_floor(blocks))
        rows.append(await measure(bus, blocks, f"train_{place}", own_cpu))
    return {**medians(rows[1:]), "copy_floor_ms": round(statistics.median(floors[1:]), 4)}


async def wake_up(bus: Bus, rounds: int) -> float:
    """Median seconds from the end of a put to the end of a get that has waited for it for half a second."""
    seconds = []
    for place in range(rounds):
        partition = f"woken_{place}"
        get = asyncio.create_task(bus.get(partition, ["rollout"], [0], deadline_s=30))
        await asyncio.sleep(0.5)
        await bus.put(partition, "rollout", make_blocks(1, 16))
        start = time.perf_counter()
        await get
        seconds.append(time.perf_counter() - start)
        await bus.drop(partition)
    return statistics.median(seconds)


async def bench_transfer_queue(blocks: list[Block], rounds: int, bell: Path | None) -> dict[str, float]:
    from relax.distributed.bus.transfer_queue import TransferQueueBus, TransferQueueOwner

    owner = TransferQueueOwner(bell=bell)
    start = time.perf_counter()
    attachment = await asyncio.to_thread(owner.start)
    started = time.perf_counter() - start
    bus = TransferQueueBus(attachment, PRODUCERS, grace_s=0.0)
    try:
        rows = [await measure(bus, blocks, f"train_{place}", tree_cpu) for place in range(rounds + 1)]
        idle = await idle_wait(bus, 5.0, tree_cpu)
        woken = await wake_up(bus, rounds)
    finally:
        await bus.close()
        await asyncio.to_thread(owner.close)
    return {
        **medians(rows[1:]),
        "start_s": round(started, 2),
        "idle_wait_cpu_fraction": round(idle, 4),
        "wake_up_ms": round(1e3 * woken, 2),
    }


def run_transfer_queue(blocks: list[Block], rounds: int, *, bell: bool) -> dict[str, float]:
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"})
    from relax.distributed.bus.transfer_queue import ENVIRONMENT, set_environment

    set_environment()
    import ray

    folder = tempfile.mkdtemp(prefix="rx", dir="/tmp")
    try:
        ray.init(
            num_cpus=8,
            include_dashboard=False,
            _temp_dir=folder,
            log_to_driver=False,
            object_store_memory=100 << 20,
            runtime_env={"env_vars": ENVIRONMENT},
        )
        path = Path(folder) / "bus-writes" if bell else None
        return asyncio.run(bench_transfer_queue(blocks, rounds, path))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--local-only", action="store_true")
    parser.add_argument("--no-bell", action="store_true", help="waiting readers poll, as they do on another node")
    args = parser.parse_args()
    blocks = make_blocks(args.groups, args.tokens)
    megabytes = sum(array.nbytes for block in blocks for array in block.columns.values()) / 1e6
    result: dict[str, object] = {"groups": args.groups, "tokens": args.tokens, "megabytes": round(megabytes, 1)}
    result["local"] = asyncio.run(bench_local(blocks, args.rounds))
    if not args.local_only:
        result["transfer_queue"] = run_transfer_queue(blocks, args.rounds, bell=not args.no_bell)
    result["load"] = round(os.getloadavg()[0], 2)
    for name, value in result.items():
        print(f"{name}: {value}")
    print(f"RESULT {json.dumps(result)}")


if __name__ == "__main__":
    main()
