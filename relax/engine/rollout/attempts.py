# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One sample until it is whole: calls the generate function, and tries again by a stated policy."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from relax.engine.rollout.hooks import ActiveTime, GenerateFailed, GenerateHook, call_generate, load_hook, name_of
from relax.engine.rollout.recorder import Interruption, SampleRecorder
from relax.engine.rollout.state import GrowingPermits, Permits
from relax.schedule.clock import Clock
from relax.utils.errors import InfrastructureError, UserCodeError
from relax.utils.http_utils import HttpError
from relax.utils.types import Sample

logger = logging.getLogger(__name__)

FailurePolicy = Literal["drop", "regenerate", "fail"]
MAX_CLIENT_ERROR = 499  # a request that the engine refuses is refused again


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How samples are generated. Times are seconds.

    A failed sample (user code raised, timed out, or its tokens do not match the engine's answers) is handled by
    `on_failure`: `drop` its group, `regenerate` it up to `max_attempts` calls and then drop, or `fail` the run.
    """

    seed: int
    max_response_len: int | None = None  # sampled tokens of a sample over its turns
    max_running_samples: int = 1024  # generate calls that hold a permit at a time
    call_timeout_s: float = 3600.0  # of active time
    on_failure: FailurePolicy = "regenerate"
    max_attempts: int = 3
    max_aborts: int = 64  # interruptions by pauses and weight updates that a sample survives
    engine_tries: int = 6  # calls that the infrastructure may break, beyond those of post itself
    engine_wait_s: float = 0.5  # doubles with each try
    partial_rollout: bool = False  # go on with an interrupted response instead of starting again
    protected_after: int | None = None  # interruptions after which a response is left to run; None: never
    mask_off_policy: bool = False  # train only on tokens of the newest version of a continued response
    stream: str = "sample"  # random stream: "sample" or "eval"
    lora_path: str | None = None  # name of the adapter that requests ask for, where the engine merges none
    strict_timing: bool = False  # a time-out ends the run, whatever `on_failure` says (--deterministic)


class Dropped(Exception):
    """The sample cannot be had; its group ends as dropped for `reason`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Tally:
    """What the attempts at one group (or data set) cost."""

    sampled_tokens: int = 0  # thrown away ones included
    attempts: int = 0  # generate calls
    failures: Counter[str] = field(default_factory=Counter)  # by reason
    in_flight: set[SampleRecorder] = field(default_factory=set)

    def request_ids(self, interruption: Interruption | None = None) -> list[str]:
        """Engine requests that run now, of one kind or of all."""
        recorders = [r for r in self.in_flight if interruption in (None, r.interruption)]
        return sorted(rid for recorder in recorders for rid in recorder.in_flight)


class SampleRunner:
    """Runs generate calls under shared permits. `wait_open` holds calls and requests back while it does not return."""

    def __init__(
        self,
        *,
        args: Any,
        hook: GenerateHook,
        sampling_params: dict[str, Any],
        options: GenerationOptions,
        clock: Clock,
        active: ActiveTime,
        wait_open: Callable[[], Awaitable[None]],
        evaluation: bool = False,
        permits: Permits | None = None,
    ) -> None:
        self._args, self._hook, self._params, self._options = args, hook, sampling_params, options
        self._clock, self._active, self._wait_open, self._evaluation = clock, active, wait_open, evaluation
        self._permits = permits or GrowingPermits(options.max_running_samples)

    def resize(self, max_running_samples: int) -> None:
        """Change how many calls may run at a time; shared permits are whoever's made them."""
        if isinstance(self._permits, GrowingPermits):
            self._permits.resize(max_running_samples)

    async def run(self, prompt: Sample, tally: Tally) -> list[Sample]:
        """Generate until whole -> the samples of the call (one, unless the function fans out).

        Raises `Dropped`, or by policy the error itself. `prompt` stays as it is.
        """
        hook = load_hook(prompt.generate_function_path) if prompt.generate_function_path else self._hook
        sample, failures, engine_failures, aborts = fresh_copy(prompt), 0, 0, 0
        while True:
            await self._wait_open()
            try:
                samples = await self._call(hook, sample, tally)
            except UserCodeError as error:
                failures += 1
                self._judge(error, failures, tally)
                sample = self._again(prompt, sample)
            except InfrastructureError as error:
                engine_failures += 1
                await self._after_engine_failure(error, engine_failures, sample, tally)
                sample = self._again(prompt, sample)
            else:
                if not any(s.status is Sample.Status.ABORTED for s in samples):
                    return self._finished(hook, samples)
                aborts += 1
                if aborts > self._options.max_aborts:
                    raise Dropped("aborted", f"sample {name_of(sample)} was interrupted {aborts} times")
                sample = self._resume(hook, prompt, samples)

    async def _call(self, hook: GenerateHook, sample: Sample, tally: Tally) -> list[Sample]:
        recorder = SampleRecorder(
            seed=self._options.seed,
            stream=self._options.stream,
            sample=sample,
            max_response_len=self._options.max_response_len,
            gate=self._wait_open,
            first_turn=sample.abort_count if sample.response_length else 0,
            interruption=self._interruption(hook, sample),
            lora_path=self._options.lora_path,
        )
        tally.attempts += 1
        tally.in_flight.add(recorder)
        try:
            return await call_generate(
                hook,
                args=self._args,
                sample=sample,
                sampling_params=self._params,
                evaluation=self._evaluation,
                recorder=recorder,
                permits=self._permits,
                timeout_s=self._options.call_timeout_s,
                active=self._active,
            )
        finally:
            tally.sampled_tokens += recorder.sampled_tokens
            tally.in_flight.discard(recorder)

    def _judge(self, error: UserCodeError, failures: int, tally: Tally) -> None:
        """Return to try again; raise to drop the group or to fail the run."""
        reason = error.reason if isinstance(error, GenerateFailed) else "user_error"
        tally.failures[reason] += 1
        if self._options.strict_timing and reason == "timeout":
            raise error
        policy = self._options.on_failure
        logger.warning("sample refused reason=%s policy=%s failures=%d error=%s", reason, policy, failures, error)
        if policy == "fail":
            raise error
        if policy == "drop" or failures >= self._options.max_attempts:
            raise Dropped(reason, str(error)) from error

    async def _after_engine_failure(
        self, error: InfrastructureError, failures: int, sample: Sample, tally: Tally
    ) -> None:
        refused = isinstance(error, HttpError) and 400 <= error.status <= MAX_CLIENT_ERROR and error.status != 429
        if error.retry != "request" or refused or failures >= self._options.engine_tries:
            raise error
        tally.failures["engine"] += 1
        wait_s = self._options.engine_wait_s * 2 ** (failures - 1)
        logger.warning("engine call failed sample=%s wait_s=%g error=%s", name_of(sample), wait_s, error)
        await self._clock.sleep(wait_s)

    def _again(self, prompt: Sample, failed: Sample) -> Sample:
        """The prompt as a new attempt from its beginning."""
        sample = fresh_copy(prompt)
        sample.attempt, sample.abort_count = failed.attempt + 1, failed.abort_count
        return sample

    def _resume(self, hook: GenerateHook, prompt: Sample, samples: list[Sample]) -> Sample:
        """The next attempt after an interruption: the rest of the response, or all of it."""
        interrupted = samples[0]
        if not self._continues(hook):
            sample = self._again(prompt, interrupted)
        else:
            sample = interrupted
            sample.attempt, sample.status, sample.finish_reason = interrupted.attempt + 1, Sample.Status.PENDING, None
        sample.abort_count += 1
        return sample

    def _continues(self, hook: GenerateHook) -> bool:
        """Only the default function can go on in the middle; a user's own starts again."""
        return self._options.partial_rollout and hook.is_default

    def _interruption(self, hook: GenerateHook, sample: Sample) -> Interruption:
        if not self._continues(hook):
            return "none"
        limit = self._options.protected_after
        return "protected" if limit is not None and sample.abort_count >= limit else "cut"

    def _finished(self, hook: GenerateHook, samples: list[Sample]) -> list[Sample]:
        if self._options.mask_off_policy and self._continues(hook):
            for sample in samples:
                mask_off_policy(sample)
        return samples


def mask_off_policy(sample: Sample) -> None:
    """Mask what older weights sampled of a response that went on under newer ones. Versions stay: they are its age."""
    if sample.abort_count and sample.weight_versions:
        newest = max(sample.weight_versions)
        pairs = zip(sample.loss_mask or (), sample.weight_versions, strict=True)
        sample.loss_mask = [int(bool(mask) and version == newest) for mask, version in pairs]


def fresh_copy(prompt: Sample, index: int | None = None) -> Sample:
    """A copy that may be filled without touching the prompt; media objects are shared, never copied."""
    sample = copy.copy(prompt)
    sample.metadata, sample.train_metadata = copy.deepcopy(prompt.metadata), copy.deepcopy(prompt.train_metadata)
    sample.tokens, sample.rollout_tokens = list(prompt.tokens), list(prompt.rollout_tokens)
    sample.weight_versions, sample.reward_parts = list(prompt.weight_versions), dict(prompt.reward_parts)
    if isinstance(prompt.prompt, list):
        sample.prompt = copy.deepcopy(prompt.prompt)
    if index is not None:
        sample.index = index
    return sample
