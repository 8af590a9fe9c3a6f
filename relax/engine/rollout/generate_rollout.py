# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The default rollout function (`--rollout-function-path`): one rollout from a data source, start to end.

The rollout role does not need it: it keeps a `GroupGenerator` running across rollouts. This is the same work as one
call, for users who replace the whole rollout and want to build on the default one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from relax.engine.rollout.attempts import GenerationOptions
from relax.engine.rollout.evaluate import EvalResult, evaluate
from relax.engine.rollout.groups import (
    AdmittedGroup,
    DynamicFilter,
    EngineAborter,
    FinishedGroup,
    GroupGenerator,
    Scorer,
)
from relax.engine.rollout.hooks import load_hook
from relax.engine.rollout.state import GenerateState
from relax.schedule.clock import Clock, RealClock
from relax.utils.errors import DataError
from relax.utils.types import Sample


@dataclass
class RolloutFnTrainOutput:
    """Accepted groups of one rollout, in order of group id, and its metrics."""

    samples: list[list[Sample]]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class RolloutFnEvalOutput:
    """{data set name: {"rewards", "truncated", "samples"}}."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)


class DataSource(Protocol):
    """`get_samples(n)` gives n groups; each is a list of copies of one prompt with group_index and index set."""

    def get_samples(self, num_groups: int) -> list[list[Sample]]: ...


async def generate_rollout(
    args: Any,
    rollout_id: int,
    data_source: Any,
    data_system_client: Any = None,
    evaluation: bool = False,
    *,
    scorer: Scorer,
    dynamic_filter: DynamicFilter | None = None,
    engines: EngineAborter | None = None,
    clock: Clock | None = None,
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Generate one rollout, or evaluate.

    Training asks `data_source.get_samples` for `--over-sampling-batch-size` groups at first and for more as groups
    are dropped, until `--rollout-batch-size` are accepted; the rest is cut off. In evaluation `data_source` is a
    sequence of `EvalTask`. `data_system_client` is not used: the role owns the bus.
    """
    clock = clock or RealClock()
    options = generation_options(args)
    if evaluation:
        hook = load_hook(args.eval_generate_function_path or args.custom_generate_function_path)
        results = await evaluate(data_source, args=args, hook=hook, options=options, scorer=scorer, clock=clock)
        return _eval_output(results)
    hook = load_hook(args.custom_generate_function_path)
    generator = GroupGenerator(
        args=args,
        hook=hook,
        sampling_params=GenerateState(args).sampling_params,
        options=options,
        clock=clock,
        scorer=scorer,
        dynamic_filter=dynamic_filter,
        engines=engines,
    )
    try:
        finished = await _collect(generator, data_source, args.rollout_batch_size, args.over_sampling_batch_size)
    finally:
        await generator.stop()
    return _train_output(finished, generator)


def generation_options(args: Any) -> GenerationOptions:
    """Limits and seed from the hooks' view."""
    return GenerationOptions(
        seed=args.rollout_seed,
        max_response_len=args.rollout_max_response_len,
        max_running_samples=GenerateState(args).capacity,
        call_timeout_s=args.generate_timeout_s,
        on_failure=args.rollout_failure_policy,
        partial_rollout=args.partial_rollout,
        protected_after=args.partial_rollout_max_aborted_count,
        mask_off_policy=args.mask_offpolicy_in_partial_rollout,
    )


async def _collect(
    generator: GroupGenerator, data_source: DataSource, wanted: int, over_sampling: int | None
) -> list[FinishedGroup]:
    accepted: list[FinishedGroup] = []
    outstanding, ask = 0, max(wanted, over_sampling or wanted)
    while len(accepted) < wanted:
        if ask > 0:
            groups = _take(data_source, ask)
            generator.admit(groups)
            outstanding += len(groups)
        finished = await generator.next_finished()
        outstanding -= 1
        if finished.accepted:
            accepted.append(finished)
        ask = wanted - len(accepted) - outstanding
    return sorted(accepted, key=lambda group: group.group)


def _take(data_source: DataSource, num_groups: int) -> list[AdmittedGroup]:
    groups = data_source.get_samples(num_groups)
    if not groups:
        raise DataError(f"the data source gave no prompt when {num_groups} were asked for")
    return [AdmittedGroup(group[0].group_index or 0, group[0], len(group)) for group in groups]


def _train_output(finished: list[FinishedGroup], generator: GroupGenerator) -> RolloutFnTrainOutput:
    metrics = {f"rollout/dropped_groups/{reason}": float(n) for reason, n in sorted(generator.drop_counts.items())}
    metrics["rollout/sampled_tokens"] = float(sum(group.sampled_tokens for group in finished))
    return RolloutFnTrainOutput([group.samples for group in finished], metrics)


def _eval_output(results: list[EvalResult]) -> RolloutFnEvalOutput:
    data = {r.name: {"rewards": r.rewards, "truncated": r.truncated, "samples": r.samples} for r in results}
    return RolloutFnEvalOutput(data, {f"eval/{r.name}": r.mean_reward for r in results})
