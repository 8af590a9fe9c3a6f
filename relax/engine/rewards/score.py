# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`RewardScorer` fills `sample.reward`: who scores a sample, within which limits, and what a failure does.

Order of choice: `--custom-rm-path`, then the row's `metadata.rm_type`, then `--rm-type`, then, with `--rm-type-infer`,
what the label looks like, then `--rm-type-fallback`, which also stands for a name that nobody knows.
"""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from relax.engine.rewards.builtin import DUMMY, REMOTE, SCORE_KEY, built_in_reward, is_known, known_names
from relax.engine.rewards.custom import CustomReward
from relax.engine.rewards.infer import ZERO, inferred_name
from relax.engine.rewards.math_check import quick_verdict
from relax.engine.rewards.remote import RemoteReward
from relax.engine.rewards.values import sample_name, store_reward
from relax.engine.rewards.worker_pool import ScoringTimeout, WorkerPool
from relax.schedule.clock import Clock, RealClock
from relax.utils.errors import ConfigError, InfrastructureError, UserCodeError
from relax.utils.types import Sample

logger = logging.getLogger(__name__)
MATH_FUNCTION = "relax.engine.rewards.symbolic.equal_answers"
FAILURE_POLICIES = ("drop", "zero", "fail")
ERROR_KEY = "reward_error"  # of Sample.train_metadata: why a sample has no reward of its own


class RewardScorer:
    """Scores samples concurrently; a sample that cannot be scored follows `on_failure`, and the run goes on.

    on_failure  drop: reward NaN and `remove_sample`, so it trains nothing and has no say in its group's mean;
                zero: reward 0.0; fail: `UserCodeError`.
    A failure is an exception, a time-out, None or NaN. It is counted in `counts`, and its text is kept in
    `sample.train_metadata["reward_error"]`. A function that returns the wrong kind or number of values is a bug, not
    a failure: it always raises `UserCodeError`. With `strict_timing` (--deterministic) so does a time-out or a broken
    connection: no policy may decide by the clock or by the network.
    """

    def __init__(
        self,
        *,
        rm_type: str | None = None,
        rm_type_infer: bool = False,
        rm_type_fallback: str | None = None,
        custom_rm_path: str | None = None,
        group_rm: bool = False,
        reward_key: str | None = None,
        rm_url: str | None = None,
        args: Any = None,
        max_concurrency: int = 64,
        num_workers: int = 2,
        timeout_s: float = 120.0,
        math_timeout_s: float = 10.0,
        on_failure: str = "drop",
        strict_timing: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if on_failure not in FAILURE_POLICIES:
            raise ConfigError(f"--reward-failure-policy {on_failure!r} is unknown; known are {FAILURE_POLICIES}")
        if group_rm and custom_rm_path is None:
            raise ConfigError("--group-rm scores whole groups with a function of yours: set --custom-rm-path too")
        if rm_type is not None and custom_rm_path is None:
            _check_name(rm_type, "--rm-type", rm_url)
        if rm_type_fallback not in (None, ZERO):
            _check_name(rm_type_fallback, "--rm-type-fallback", rm_url)
        self.counts: Counter[str] = Counter()  # scored, errors, timeouts, invalid
        self.fallbacks: Counter[tuple[str, str]] = Counter()  # (reason, value) -> samples scored by the fallback
        self.seconds = 0.0  # summed over scored calls, waiting for a permit excluded
        self._rm_type, self._infer, self._fallback = rm_type, rm_type_infer, rm_type_fallback
        self._reward_key = reward_key
        self._group_rm = group_rm
        self._rm_url = rm_url
        self._timeout_s = timeout_s  # one sample
        self._math_timeout_s = min(math_timeout_s, timeout_s)  # one symbolic comparison
        self._on_failure = on_failure
        self._strict_timing = strict_timing
        self._clock = clock or RealClock()
        self._permits = asyncio.Semaphore(max_concurrency)
        self._pool = WorkerPool(num_workers)
        self._custom = CustomReward(custom_rm_path, args, group=group_rm) if custom_rm_path else None
        self._remote = RemoteReward(rm_url, self._clock) if rm_url else None

    async def score(self, samples: Sequence[Sample]) -> float:
        """Fill the reward of every sample that has none -> seconds in which the slowest to start waited for its turn.

        With --group-rm, `samples` is one whole group.
        """
        waiting = [sample for sample in samples if sample.reward is None]
        if not waiting:
            return 0.0
        queued: list[float] = []
        if self._group_rm and self._custom is not None:
            await self._score_group(self._custom, samples, queued)
            return max(queued)
        tasks = [asyncio.ensure_future(self._score_one(sample, queued)) for sample in waiting]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return max(queued)

    async def _score_one(self, sample: Sample, queued: list[float]) -> None:
        name = self._name(sample)
        try:
            value = await self._limited(lambda: self._value(name, sample), queued)
        except (UserCodeError, ConfigError):
            raise
        except Exception as error:  # the sample is told (train_metadata), the log and the counters
            self._check_timing(error, name, sample)
            self._failed([sample], name, _kind(error), _text(error))
            return
        self._store(sample, value, name)

    async def _score_group(self, custom: CustomReward, samples: Sequence[Sample], queued: list[float]) -> None:
        try:
            values = await self._limited(lambda: custom.group(samples), queued)
        except (UserCodeError, ConfigError):
            raise
        except Exception as error:  # the samples are told (train_metadata), the log and the counters
            self._check_timing(error, custom.path, samples[0])
            self._failed(samples, custom.path, _kind(error), _text(error))
            return
        for sample, value in zip(samples, values, strict=True):
            self._store(sample, value, custom.path)

    async def _limited(self, call: Callable[[], Awaitable[Any]], queued: list[float]) -> Any:
        """Await `call()` under a permit and within the time limit; `queued` gets the wait for the permit."""
        asked = self._clock.now()
        async with self._permits:
            start = self._clock.now()
            queued.append(start - asked)
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    return await call()
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ScoringTimeout(f"scoring took longer than {self._timeout_s:g} s") from None
            finally:
                self.seconds += self._clock.now() - start

    def _name(self, sample: Sample) -> str:
        """Who scores the sample: the custom path, or a known built-in name."""
        if self._custom is not None:
            return self._custom.path
        own = sample.metadata.get("rm_type")
        name = own or self._rm_type or (inferred_name(sample.label) if self._infer else None)
        if self._fallback is not None and (name is None or not is_known(name)):
            return self._fallback_name(sample, name)
        if name is None:
            unlike = f", whose label {sample.label!r:.60} tells none," if self._infer else ""
            raise ConfigError(
                f"sample {sample_name(sample)}{unlike} has no reward: set --rm-type (one of "
                f"{', '.join(known_names())}), --custom-rm-path, --rm-type-fallback, or metadata.rm_type in its row"
            )
        if own:
            _check_name(own, f"metadata.rm_type of sample {sample_name(sample)}", self._rm_url)
        return name

    def _fallback_name(self, sample: Sample, unknown: str | None) -> str:
        """--rm-type-fallback, with one warning for each reason and value."""
        assert self._fallback is not None
        if unknown is not None:
            cause = ("unknown rm_type", unknown)
        else:
            cause = ("label not recognised", f"{sample.label!r:.40}") if self._infer else ("no rm_type", "")
        self.fallbacks[cause] += 1
        if self.fallbacks[cause] == 1:
            logger.warning(
                "reward fallback reason=%r value=%s sample=%s reward=%s", *cause, sample_name(sample), self._fallback
            )
        return DUMMY if self._fallback == ZERO else self._fallback

    async def _value(self, name: str, sample: Sample) -> Any:
        if self._custom is not None:
            return await self._custom.one(sample)
        if name == REMOTE and self._remote is not None:
            return await self._remote(sample)
        return await built_in_reward(name, sample, self._equal)

    async def _equal(self, answer: str, gold: str) -> bool:
        verdict = quick_verdict(answer, gold)
        if verdict is not None:
            return verdict
        return await self._pool.call(MATH_FUNCTION, answer, gold, timeout_s=self._math_timeout_s)

    def _store(self, sample: Sample, value: Any, name: str) -> None:
        key = self._reward_key
        if key is None and self._custom is None and isinstance(value, dict):
            key = next((k for k in (SCORE_KEY, "reward") if k in value), None)
        score = store_reward(sample, value, path=name, reward_key=key)
        if score is None or not math.isfinite(score):
            self._failed([sample], name, "invalid", f"the reward is {score}")
            return
        if self._reward_key is None:
            sample.reward = score  # a built-in's dict: its other numbers stay in reward_parts
        self.counts["scored"] += 1

    def _check_timing(self, error: Exception, name: str, sample: Sample) -> None:
        if self._strict_timing and isinstance(error, (ScoringTimeout, TimeoutError, InfrastructureError, OSError)):
            raise UserCodeError(
                f"{_text(error)}With --deterministic a reward that fails by time or connection ends the run, because "
                "another run would have got it: raise --reward-timeout-s, or make the function independent of both",
                path=name,
                sample=sample_name(sample),
            ) from error

    def _failed(self, samples: Sequence[Sample], name: str, kind: str, text: str) -> None:
        """Apply the policy to samples without a score. `kind` is the counter: errors, timeouts or invalid."""
        for sample in samples:
            self.counts[kind] += 1
            last_line = text.strip().rpartition("\n")[2]
            logger.warning(
                "no reward sample=%s from=%s kind=%s policy=%s: %s",
                sample_name(sample), name, kind, self._on_failure, last_line,
            )  # fmt: skip
            if self._on_failure == "fail":
                raise UserCodeError(text, path=name, sample=sample_name(sample))
            sample.train_metadata[ERROR_KEY] = text
            sample.reward = 0.0 if self._on_failure == "zero" else math.nan
            sample.remove_sample = sample.remove_sample or self._on_failure == "drop"

    async def close(self) -> None:
        """End the workers and the HTTP session."""
        await self._pool.close()
        if self._remote is not None:
            await self._remote.close()


def _check_name(name: str, source: str, rm_url: str | None) -> None:
    if not is_known(name):
        raise ConfigError(f"{source} {name!r} is unknown; known are {', '.join(known_names())}")
    if name == REMOTE and not rm_url:
        raise ConfigError(f"{source} {REMOTE} needs --rm-url")


def _kind(error: Exception) -> str:
    return "timeouts" if isinstance(error, ScoringTimeout) else "errors"


def _text(error: Exception) -> str:
    """The error with its traceback: where in the user's function it arose."""
    return "".join(traceback.format_exception(error))
