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

from relax.engine.rollout.attempts import Dropped, GenerationOptions, SampleRunner, Tally, fresh_copy
from relax.engine.rollout.groups import Scorer
from relax.engine.rollout.hooks import ActiveTime, GenerateHook
from relax.schedule.clock import Clock
from relax.utils.errors import ConfigError
from relax.utils.types import Sample

EVAL_GROUP_BASE = 1 << 48  # request ids of evaluation never meet those of training
EVAL_DATASET_STRIDE = 1 << 32  # rows of one data set
DEFAULT_NAME = "aime"  # documented name of a data set given by its path alone


@dataclass(frozen=True)
class EvalDataset:
    """One data set. `rows` are prepared prompts, in file order."""

    name: str
    rows: Sequence[Sample]
    sampling_params: dict[str, Any]
    num_samples: int = 1  # --n-samples-per-eval-prompt
    hook: GenerateHook | None = None  # its own custom_generate_function_path


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

    def pass_rates(self, threshold: float = 1.0) -> dict[int, float]:
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


def parse_eval_prompt_data(words: Sequence[str]) -> list[tuple[str, str]]:
    """`--eval-prompt-data name path [name path ...]` as (name, path) pairs; one word alone is a path."""
    if len(words) == 1:
        return [(DEFAULT_NAME, words[0])]
    if len(words) % 2:
        raise ConfigError(f"--eval-prompt-data takes pairs of name and path, got {len(words)} words: {list(words)}")
    pairs = list(zip(words[::2], words[1::2], strict=True))
    doubled = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if doubled:
        raise ConfigError(f"--eval-prompt-data names {doubled[0]!r} twice; give each data set its own name")
    return pairs


async def evaluate(
    datasets: Sequence[EvalDataset],
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
    active = ActiveTime(clock)
    results = []
    for place, dataset in enumerate(datasets):
        runner = SampleRunner(
            args=args,
            hook=dataset.hook or hook,
            sampling_params=dataset.sampling_params,
            options=replace(options, max_response_len=dataset.sampling_params["max_new_tokens"]),
            clock=clock,
            active=active,
            wait_open=wait_open or _always_open,
            evaluation=True,
            permits=permits,
        )
        results.append(await _evaluate_one(place, dataset, runner, scorer, clock, reward_key))
    return results


async def _always_open() -> None:
    return None


async def _evaluate_one(
    place: int, dataset: EvalDataset, runner: SampleRunner, scorer: Scorer, clock: Clock, reward_key: str | None
) -> EvalResult:
    started, tally = clock.now(), Tally()
    first = EVAL_GROUP_BASE + place * EVAL_DATASET_STRIDE
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_evaluate_row(row, first + number, dataset, runner, scorer, tally))
            for number, row in enumerate(dataset.rows)
        ]
    samples = [sample for task in tasks for sample in task.result()]
    failed = [sample.status is Sample.Status.FAILED for sample in samples]
    return EvalResult(
        name=dataset.name,
        num_samples=dataset.num_samples,
        samples=samples,
        rewards=[0.0 if bad else s.get_reward(reward_key) for s, bad in zip(samples, failed, strict=True)],
        truncated=[s.status is Sample.Status.TRUNCATED for s in samples],
        failures=dict(Counter(s.metadata["eval_failure"] for s in samples if "eval_failure" in s.metadata)),
        sampled_tokens=tally.sampled_tokens,
        seconds=clock.now() - started,
    )


async def _evaluate_row(
    row: Sample, group: int, dataset: EvalDataset, runner: SampleRunner, scorer: Scorer, tally: Tally
) -> list[Sample]:
    """The n samples of one row, scored together. A fan-out's last sample stands for its call."""
    prompts = [fresh_copy(row, index) for index in range(dataset.num_samples)]
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
        prompt.metadata["eval_failure"] = drop.reason
        return prompt


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
