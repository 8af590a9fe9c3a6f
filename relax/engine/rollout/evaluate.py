# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Evaluation: every row of every data set, n samples a row, all of them counted.

Rows are generated under the same permits, tap and checks as training samples. A sample that cannot be had counts
with reward 0 and is named, so the number behind a mean is always rows x n.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relax.config.evaluation import EvalDataset
from relax.engine.rollout.attempts import Dropped, GenerationOptions, SampleRunner, Tally, fresh_copy
from relax.engine.rollout.groups import Scorer
from relax.engine.rollout.hooks import ActiveTime, GenerateHook, load_hook
from relax.engine.rollout.sampling import SamplingOptions
from relax.schedule.clock import Clock
from relax.utils.errors import UserCodeError
from relax.utils.types import Sample

EVAL_GROUP_BASE = 1 << 48  # request ids of evaluation never meet those of training
EVAL_DATASET_STRIDE = 1 << 32  # rows of one data set
FAILURE_KEY = "generate_error"  # of Sample.train_metadata: why a sample was not generated


@dataclass(frozen=True)
class EvalTask:
    """One data set to evaluate. `rows` are prepared prompts, in file order."""

    name: str
    rows: Sequence[Sample]
    sampling_params: dict[str, Any]
    num_samples: int = 1  # --n-samples-per-eval-prompt
    hook: GenerateHook | None = None  # its own custom_generate_function_path


PASSED = 1.0  # a sample with this raw reward or more is right


@dataclass
class EvalResult:
    """Scores of one data set; lists are in (row, sample) order and have rows x n entries."""

    name: str
    num_samples: int  # n
    samples: list[Sample]
    rewards: list[float]
    truncated: list[bool]
    failures: dict[str, int] = field(default_factory=dict)  # samples that could not be had, by reason
    sampled_tokens: int = 0
    seconds: float = 0.0

    @property
    def mean_reward(self) -> float:
        return math.fsum(self.rewards) / len(self.rewards) if self.rewards else math.nan

    @property
    def truncated_fraction(self) -> float:
        return sum(self.truncated) / len(self.truncated) if self.truncated else math.nan

    def pass_rates(self, threshold: float = PASSED) -> dict[int, float]:
        """{k: pass@k} for k = 1, 2, 4 .. n; a sample passes when its reward is at least `threshold`."""
        rows = [self.rewards[i : i + self.num_samples] for i in range(0, len(self.rewards), self.num_samples)]
        counts = [sum(reward >= threshold for reward in row) for row in rows]
        ks = [1 << power for power in range(self.num_samples.bit_length()) if 1 << power <= self.num_samples]
        return {k: _mean([pass_at_k(self.num_samples, count, k) for count in counts]) for k in ks}


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement passes: 1 - C(n - c, k) / C(n, k).

    The unbiased estimator of Chen et al., "Evaluating large language models trained on code", arXiv 2107.03374.
    """
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def eval_task(dataset: EvalDataset, rows: Sequence[Sample], *, args: Any) -> EvalTask:
    """A configured data set with its rows; stops and special tokens are the rollout's."""
    sampling = SamplingOptions(
        max_response_len=dataset.max_response_len,
        temperature=dataset.temperature,
        top_p=dataset.top_p,
        top_k=dataset.top_k,
        min_new_tokens=dataset.min_new_tokens,
        stop=tuple(args.rollout_stop),
        stop_token_ids=tuple(args.rollout_stop_token_ids),
        skip_special_tokens=args.rollout_skip_special_tokens,
    )
    path = dataset.custom_generate_function_path
    hook = load_hook(path, flag=f"--eval-generate-function-path of data set {dataset.name}") if path else None
    return EvalTask(dataset.name, rows, sampling.params(), dataset.n_samples_per_eval_prompt, hook)


async def evaluate(
    tasks: Sequence[EvalTask],
    *,
    args: Any,
    hook: GenerateHook,
    options: GenerationOptions,
    scorer: Scorer,
    clock: Clock,
    reward_key: str | None = None,
    wait_open: Callable[[], Awaitable[None]] | None = None,
) -> list[EvalResult]:
    """Evaluate all data sets, one after the other -> one result each.

    `hook` is used where a data set has none of its own. `reward_key` selects the score of a dict reward.
    `wait_open` holds requests back while it does not return (the rollout's pause).
    """
    options = replace(options, stream="eval", partial_rollout=False)
    permits = asyncio.Semaphore(options.max_running_samples)
    active = ActiveTime()
    results = []
    for place, task in enumerate(tasks):
        runner = SampleRunner(
            args=args,
            hook=task.hook or hook,
            sampling_params=task.sampling_params,
            options=replace(options, max_response_len=task.sampling_params["max_new_tokens"]),
            clock=clock,
            active=active,
            wait_open=wait_open or _always_open,
            evaluation=True,
            permits=permits,
        )
        results.append(await _evaluate_one(place, task, runner, scorer, clock, reward_key))
    return results


async def _always_open() -> None:
    return None


async def _evaluate_one(
    place: int, task: EvalTask, runner: SampleRunner, scorer: Scorer, clock: Clock, reward_key: str | None
) -> EvalResult:
    started, tally = clock.now(), Tally()
    first = EVAL_GROUP_BASE + place * EVAL_DATASET_STRIDE
    async with asyncio.TaskGroup() as group:
        rows = [
            group.create_task(_evaluate_row(row, first + number, task, runner, scorer, tally))
            for number, row in enumerate(task.rows)
        ]
    samples = [sample for row in rows for sample in row.result()]
    scores = [_score(sample, reward_key) for sample in samples]
    return EvalResult(
        name=task.name,
        num_samples=task.num_samples,
        samples=samples,
        rewards=[0.0 if math.isnan(score) else score for score in scores],
        truncated=[s.status is Sample.Status.TRUNCATED for s in samples],
        failures=dict(Counter(_failure(s) for s, x in zip(samples, scores, strict=True) if math.isnan(x))),
        sampled_tokens=tally.sampled_tokens,
        seconds=clock.now() - started,
    )


def _score(sample: Sample, reward_key: str | None) -> float:
    """The reward, or NaN where there is none: the sample failed, or scoring it did."""
    if sample.reward is None:
        return math.nan
    if not isinstance(sample.reward, dict):  # a built-in's dict leaves its other numbers in reward_parts
        return sample.reward_parts.get(reward_key, float(sample.reward)) if reward_key else float(sample.reward)
    if reward_key not in sample.reward:
        raise UserCodeError(
            f"--eval-reward-key {reward_key!r} is not in the returned dict: keys are {sorted(sample.reward)}",
            path="--custom-rm-path",
            sample=f"{sample.group_index}.{sample.index}",
        )
    return sample.get_reward(reward_key)


def _failure(sample: Sample) -> str:
    return str(sample.train_metadata.get(FAILURE_KEY, "reward_error"))


async def _evaluate_row(
    row: Sample, group: int, task: EvalTask, runner: SampleRunner, scorer: Scorer, tally: Tally
) -> list[Sample]:
    """The n samples of one row, scored together. A fan-out's last sample stands for its call."""
    prompts = [fresh_copy(row, index) for index in range(task.num_samples)]
    for prompt in prompts:
        prompt.group_index = group
    samples = list(await asyncio.gather(*(_one_sample(prompt, runner, tally) for prompt in prompts)))
    whole = [s for s in samples if s.status is not Sample.Status.FAILED]
    if whole:
        await scorer.score(whole)
    return samples


async def _one_sample(prompt: Sample, runner: SampleRunner, tally: Tally) -> Sample:
    try:
        return (await runner.run(prompt, tally))[-1]
    except Dropped as drop:  # the result is told: the sample counts as failed, with its reason
        prompt.status = Sample.Status.FAILED
        prompt.train_metadata[FAILURE_KEY] = drop.reason
        return prompt


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
