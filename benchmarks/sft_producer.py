# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How fast the producer of supervised fine-tuning renders rows, and how long the trainer waits for them.

    python -m benchmarks.sft_producer [--rows 1024] [--batch 64]

`threads`: one producer with 1, 2, 4 rendering threads; `processes`: the same with --mm-processor-pool-size; `shards`:
1, 2, 4 producers as processes of their own, as RELAX_SFT_TQ_SHARDS makes them. Rates are rows of all producers a
second of wall time, starts left out. `trainer_data_wait` is the share of a text run's time in which the trainer had no
data. The last line is `RESULT {json}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.sft_data import long_rows
from relax.config.run import RunConfig, parse_args

COUNTS = (1, 2, 4)


def config_of(folder: Path, batch: int, **changed: Any) -> RunConfig:
    flags: dict[str, Any] = {
        "loss_type": "sft",
        "use_dynamic_batch_size": True,
        "hf_checkpoint": folder / "model",
        "prompt_data": folder / "rows.jsonl",
        "input_key": "problem",
        "label_key": "generated_solution",
        "num_epoch": 1,
        "global_batch_size": batch,
        "max_tokens_per_gpu": 8192,
        **changed,
    }
    return parse_args(_words(flags))


def _words(flags: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in flags.items():
        option = "--" + name.replace("_", "-")
        words += [option] if value is True else [option, str(value)]
    return words


async def draw_all(config: RunConfig, shard: int, shards: int, ready: Any = None) -> tuple[int, float]:
    """(rows, seconds) of one producer that draws every step of its shard; `ready` is a barrier after the warm-up."""
    from relax.components.sft_messages import PRODUCERS
    from relax.core.build import InProcess, Wiring
    from relax.core.sft_build import build_producer
    from relax.distributed.bus.local import LocalBus
    from relax.schedule.clock import RealClock

    shared = InProcess(LocalBus(PRODUCERS), {}, RealClock())
    producer = build_producer(config, Wiring(Path("."), Path(".")), shard, shards, shared)
    steps = config.num_rollouts((await producer.data()).rows)
    own = config.global_batch_size // shards
    drawn = await producer.draw(0, 0)  # tokenizer, template and worker processes are warm behind it
    if ready is not None:
        await asyncio.to_thread(ready.wait)
    started, rows = time.perf_counter(), 0
    for step in range(1, steps):
        drawn = await producer.draw(step, drawn.end)
        rows += len(drawn.units)
        assert len(drawn.units) == own
    seconds = time.perf_counter() - started
    await producer.stop()
    return rows, seconds


def one_producer(folder: Path, batch: int, workers: int, processes: int) -> float:
    config = config_of(
        folder,
        batch,
        sft_prefetch_num_workers=workers,
        mm_processor_pool_size=processes,
        sft_prefetch_buffer_size=batch,
    )
    rows, seconds = asyncio.run(draw_all(config, 0, 1))
    return rows / seconds


def _shard_process(folder: Path, batch: int, shard: int, shards: int, ready: Any, results: Any) -> None:
    config = config_of(folder, batch, sft_prefetch_num_workers=1, sft_prefetch_buffer_size=batch)
    results.put(asyncio.run(draw_all(config, shard, shards, ready)))


def several_producers(folder: Path, batch: int, shards: int) -> float:
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(shards), context.Queue()
    processes = [
        context.Process(target=_shard_process, args=(folder, batch, shard, shards, ready, results))
        for shard in range(shards)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return sum(rows for rows, _ in found) / max(seconds for _, seconds in found)


def trainer_wait(folder: Path, batch: int) -> dict[str, float]:
    """Share of a run's step time in which the trainer waited for its data, by steps in flight."""
    from benchmarks.sft import series, train

    waits = {}
    for in_flight in (1, 2):
        save = folder / f"run-{in_flight}"
        train(
            {
                "loss_type": "sft",
                "use_dynamic_batch_size": True,
                "inline": True,
                "bus": "local",
                "no_use_tensorboard": True,
                "hf_checkpoint": folder / "model",
                "prompt_data": folder / "rows.jsonl",
                "input_key": "problem",
                "label_key": "generated_solution",
                "num_rollout": 8,
                "global_batch_size": batch,
                "max_tokens_per_gpu": 8192,
                "sft_max_in_flight_steps": in_flight,
                "save": save,
            }
        )
        idle = zip(series(save, "perf/wait_s/actor"), series(save, "perf/wait_s/actor_data"), strict=True)
        waits[f"in_flight_{in_flight}"] = sum(sum(p) for p in list(idle)[1:]) / sum(series(save, "perf/step_s")[1:])
    return waits


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sft_producer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args(argv)
    from tests.builders import build_tiny_model_folder, write_jsonl

    folder = Path(tempfile.mkdtemp(prefix="relax-sft-producer-"))
    try:
        build_tiny_model_folder(folder / "model")
        write_jsonl(folder / "rows.jsonl", long_rows(options.rows))
        result: dict[str, Any] = {"rows": options.rows, "batch": options.batch}
        result["threads"] = {str(n): round(one_producer(folder, options.batch, n, 0)) for n in COUNTS}
        print(f"rows/s by threads: {result['threads']}", flush=True)
        result["processes"] = {str(n): round(one_producer(folder, options.batch, n, n)) for n in COUNTS}
        print(f"rows/s by processes: {result['processes']}", flush=True)
        result["shards"] = {str(n): round(several_producers(folder, options.batch, n)) for n in COUNTS}
        print(f"rows/s by shards: {result['shards']}", flush=True)
        result["trainer_data_wait"] = trainer_wait(folder, options.batch)
        print(f"share of the trainer's time without data: {result['trainer_data_wait']}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("RESULT " + json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
