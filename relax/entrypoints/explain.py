# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax explain FLAGS`: how prompts, samples, optimizer steps and micro-batches of a training command follow from it.

The flags are those of `relax train`. Nothing is started and no file is looked at, except the data where a short form
leaves its columns open, so that a command can be explained on another machine than its own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence

from relax.config.flags import option_name
from relax.config.report import batch_arithmetic, run_facts
from relax.config.run import RunConfig, parse_args
from relax.data.hub import Hub
from relax.entrypoints.hub_names import local_first_row
from relax.utils.errors import RelaxError

Row = tuple[str, object, str]  # what, how many, flags that say so


def main(argv: Sequence[str] | None = None) -> int:
    try:
        config = parse_args(argv, first_row=functools.partial(local_first_row, Hub()))
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    print(explanation(config))
    return 0


def explanation(config: RunConfig) -> str:
    """One table, then the cards of each role, then notes."""
    rows = [*(_supervised_rows(config) if config.is_supervised else _rows(config))]
    width, size = (max(len(str(row[column])) for row in rows) for column in (0, 1))
    lines = [f"{what:<{width}}  {number!s:>{size}}  {flags}".rstrip() for what, number, flags in rows]
    lines += ["", *run_facts(config)["resources"], f"  {run_facts(config)['backends']}"]
    lines += ["", *(f"note: {note}" for note in config.notes)] if config.notes else []
    return "\n".join(lines)


def _told(config: RunConfig, *names: str) -> str:
    return ", ".join(f"{option_name(name)} ({config.origin(name)})" for name in names)


def _supervised_rows(config: RunConfig) -> Iterator[Row]:
    """A step of supervised training takes rows of the data; there are no prompts to answer."""
    sizes, facts, told = batch_arithmetic(config), run_facts(config), functools.partial(_told, config)
    steps = sizes["rollouts"]
    yield "one optimizer step", "", told("loss_type")
    yield "  rows (pairs, for preferences)", sizes["samples_per_optimizer_step"], told("global_batch_size")
    yield "  training ranks", sizes["data_parallel_ranks"], told("resource")
    yield "  tokens of a micro-batch, at most", config.supervised_capacity, told("max_tokens_per_gpu")
    yield (
        "  steps that may be ahead of training",
        config.steps_in_flight,
        told("sft_max_in_flight_steps", "max_staleness"),
    )
    yield "the run", "", ""
    yield "  optimizer steps", "by the data" if steps is None else steps, told(*_limits(config))
    if steps is not None:
        yield "  rows", sizes["samples"], ""
        yield "  checkpoints", facts["checkpoints"]["count"], told("save_interval", "save")


def _rows(config: RunConfig) -> Iterator[Row]:
    sizes, facts, told = batch_arithmetic(config), run_facts(config), functools.partial(_told, config)
    rounds = sizes["rollouts"]
    yield "one round (rollout)", "", facts["mode"]
    yield "  prompts", sizes["prompts_per_rollout"], told("rollout_batch_size")
    yield "  x responses to each", sizes["samples_per_prompt"], told("n_samples_per_prompt")
    yield "  = samples", sizes["samples_per_rollout"], ""
    yield "  / samples of an optimizer step", sizes["samples_per_optimizer_step"], told("global_batch_size")
    yield "  = optimizer steps", sizes["optimizer_steps_per_rollout"], told("num_steps_per_rollout")
    yield "one optimizer step", "", ""
    yield (
        "  parts, each trained when it is there",
        sizes["streamed_parts_per_optimizer_step"],
        told("num_iters_per_train_update"),
    )
    yield "  training ranks", sizes["data_parallel_ranks"], told("resource")
    packed = config.train.use_dynamic_batch_size
    limit = told("max_tokens_per_gpu") if packed else told("micro_batch_size")
    number = "by length" if packed else sizes["micro_batches_per_rank_and_step"]
    yield "  micro-batches of a rank", number, limit
    yield "the run", "", ""
    yield "  rounds", "by the data" if rounds is None else rounds, told(*_limits(config))
    if rounds is not None:
        yield "  optimizer steps", sizes["optimizer_steps"], ""
        yield "  samples", sizes["samples"], ""
        yield "  checkpoints", facts["checkpoints"]["count"], told("save_interval", "save")
    yield "  rollouts that samples may be old", facts["max_staleness"], told("max_staleness")
    yield "  inference engines", facts["engines"], told("resource", "rollout_num_gpus_per_engine")


def _limits(config: RunConfig) -> tuple[str, ...]:
    given = (("num_rollout", config.rollout.num_rollout), ("num_epoch", config.rollout.num_epoch))
    return tuple(name for name, value in given if value is not None)
