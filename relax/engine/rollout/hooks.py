# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Generate functions: loading, calling, and checking what they return.

    async def generate(args, sample, sampling_params) -> Sample | list[Sample]
    async def generate(args, sample, sampling_params, evaluation=False) -> Sample | list[Sample]

A function fills `tokens`, `response`, `response_length`, `loss_mask`, `rollout_log_probs` and `status`. Everything it
asks the engine goes through `relax.utils.http_utils.post`, which is recorded; so weight versions need no filling and
what the function says it sampled is checked against what the engine answered.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from relax.data.columns import check_sample
from relax.engine.rollout.generate import generate as default_generate
from relax.engine.rollout.recorder import MismatchError, SampleRecorder
from relax.engine.rollout.state import CallPermits, Permits, current_call
from relax.utils.errors import ConfigError, RelaxError, UserCodeError
from relax.utils.http_utils import recording
from relax.utils.imports import load_callable
from relax.utils.types import Sample

logger = logging.getLogger(__name__)

FLAG = "--custom-generate-function-path"
DEFAULT_PATH = "relax.engine.rollout.sglang_rollout.generate"
CANCEL_WAIT_S = 10.0  # a cancelled function that goes on longer than this is left behind and named in the log


class GenerateFailed(UserCodeError):
    """A generate function failed or returned a sample that cannot be trained on. `reason` is the counter's name."""

    def __init__(self, reason: str, message: str, *, path: str, sample: str | None = None) -> None:
        super().__init__(message, path=path, sample=sample)
        self.reason = reason


@dataclass(frozen=True)
class GenerateHook:
    """A loaded generate function."""

    function: Callable[..., Any]
    path: str
    takes_evaluation: bool
    manages_permit: bool  # takes a permit for each request instead of one for the call

    @property
    def is_default(self) -> bool:
        return self.function is default_generate


@functools.cache
def load_hook(path: str | None = None, *, flag: str = FLAG) -> GenerateHook:
    """Load and check a generate function; None is the default one. Loaded once a process."""
    if path is None or path == DEFAULT_PATH:
        return make_hook(default_generate, DEFAULT_PATH, flag=flag)
    function = load_callable(path, flag=flag, positional=("args", "sample", "sampling_params"))
    return make_hook(function, path, flag=flag)


def make_hook(function: Callable[..., Any], path: str, *, flag: str = FLAG) -> GenerateHook:
    """Wrap a function that is there already."""
    inner = function.func if isinstance(function, functools.partial) else function
    call = inner if inspect.isroutine(inner) else type(inner).__call__
    if not inspect.iscoroutinefunction(call):
        raise ConfigError(f"{flag}={path!r} is not an `async def`; the rollout awaits it")
    parameters = inspect.signature(function).parameters.values()
    takes_evaluation = any(p.name == "evaluation" or p.kind is p.VAR_KEYWORD for p in parameters)
    return GenerateHook(function, path, takes_evaluation, bool(getattr(function, "manages_inference_permit", False)))


class ActiveTime:
    """Time limits that stand still while the rollout is paused.

    Limits run on the event loop's clock, which is also what the injected clocks count in: seconds, monotonic.
    """

    def __init__(self) -> None:
        self._limits: dict[asyncio.Timeout, float] = {}  # end on the loop's clock; seconds left during a pause
        self._paused = False

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Cancel the body after `seconds` of active time, and raise TimeoutError."""
        now = asyncio.get_running_loop().time()
        timeout = asyncio.timeout(None)
        async with timeout:
            self._limits[timeout] = seconds if self._paused else now + seconds
            if not self._paused:
                timeout.reschedule(now + seconds)
            try:
                yield
            finally:
                del self._limits[timeout]

    def pause(self) -> None:
        if self._paused:
            return
        self._paused = True
        now = asyncio.get_running_loop().time()
        for timeout, end in self._limits.items():
            self._limits[timeout] = end - now
            if not timeout.expired():
                timeout.reschedule(None)

    def resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        now = asyncio.get_running_loop().time()
        for timeout, left in self._limits.items():
            self._limits[timeout] = now + left
            if not timeout.expired():
                timeout.reschedule(now + left)


async def call_generate(
    hook: GenerateHook,
    *,
    args: Any,
    sample: Sample,
    sampling_params: dict[str, Any],
    evaluation: bool,
    recorder: SampleRecorder,
    permits: Permits,
    timeout_s: float,
    active: ActiveTime,
) -> list[Sample]:
    """Call a generate function under its permit, its time limit and the tap -> its checked samples.

    Raises `GenerateFailed` for everything the function did wrong; errors of the infrastructure that come through
    it are raised as they are, because trying again may help.
    """
    call = CallPermits(permits, managed=hook.manages_permit)
    if not hook.manages_permit:
        await permits.acquire()
    token = current_call.set(call)
    try:
        with recording(recorder):
            result = await _bounded(hook, args, sample, sampling_params, evaluation, timeout_s, active)
    finally:
        current_call.reset(token)
        if not hook.manages_permit:
            permits.release()
    return checked_samples(hook, sample, result, recorder)


async def _bounded(
    hook: GenerateHook,
    args: Any,
    sample: Sample,
    params: dict[str, Any],
    evaluation: bool,
    timeout_s: float,
    active: ActiveTime,
) -> Any:
    options = {"evaluation": evaluation} if hook.takes_evaluation else {}
    call = hook.function(args, sample, dict(params), **options)
    # user code gets a task of its own: it may cancel itself, or ignore being cancelled
    task = None if hook.is_default else asyncio.ensure_future(call)
    expired = True
    try:
        async with active.limit(timeout_s):
            if task is None:
                return await call
            await asyncio.wait({task})
            expired = False
        if task.cancelled():
            raise GenerateFailed("user_error", "cancelled its own task", path=hook.path, sample=name_of(sample))
        return task.result()
    except (RelaxError, asyncio.CancelledError):
        raise
    except Exception as error:  # any error of user code: the caller's policy decides, the traceback is kept
        reason, message = "user_error", f"raised {type(error).__name__}: {error}"
        if isinstance(error, TimeoutError) and expired:
            reason, message = "timeout", f"did not return within {timeout_s:g} s of active time"
        raise GenerateFailed(reason, message, path=hook.path, sample=name_of(sample)) from error
    finally:
        if task is not None:
            await _cancelled(task, hook.path)


async def _cancelled(task: asyncio.Future[Any], path: str) -> None:
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_WAIT_S)
    if not task.done():
        logger.error("generate function ignores its cancellation path=%s", path)


def name_of(sample: Sample) -> str:
    return f"{sample.group_index}.{sample.index}"


def checked_samples(hook: GenerateHook, sample: Sample, result: Any, recorder: SampleRecorder) -> list[Sample]:
    """What a function returned as a list of samples: identity restored, versions filled, everything checked."""
    samples = result if isinstance(result, list) else [result]
    if not samples or not all(isinstance(s, Sample) for s in samples):
        kinds = sorted({type(s).__name__ for s in samples}) or ["an empty list"]
        message = f"returned {', '.join(kinds)}; return the Sample, or a list of Samples"
        raise GenerateFailed("bad_sample", message, path=hook.path, sample=name_of(sample))
    for place, returned in enumerate(samples):
        for name in ("group_index", "index", "attempt", "epoch", "row"):
            setattr(returned, name, getattr(sample, name))
        returned.part = place if isinstance(result, list) and len(samples) > 1 else None
        _check_filled(hook, returned)
        try:
            aborted = recorder.settle(returned)
            check_sample(returned, source=hook.path)
        except MismatchError as error:
            raise GenerateFailed(error.reason, str(error), path=hook.path, sample=name_of(sample)) from error
        except ValueError as error:
            raise GenerateFailed("bad_sample", str(error), path=hook.path, sample=name_of(sample)) from error
        if recorder.prefix_breaks:
            returned.train_metadata["prefix_breaks"] = recorder.prefix_breaks
            logger.warning(
                "prefix break path=%s sample=%s turns=%d: the engine answered another context than these tokens",
                hook.path,
                name_of(sample),
                recorder.prefix_breaks,
            )
        if aborted:
            returned.status = Sample.Status.ABORTED
    return samples


def _check_filled(hook: GenerateHook, sample: Sample) -> None:
    """The function's own part of the contract, before versions are filled."""

    def fail(reason: str, message: str) -> None:
        raise GenerateFailed(reason, message, path=hook.path, sample=name_of(sample))

    length = sample.response_length
    if sample.status is Sample.Status.PENDING:
        fail("bad_sample", "left status PENDING; set Sample.Status.COMPLETED, TRUNCATED, ABORTED or FAILED")
    if not 0 <= length <= len(sample.tokens):
        fail("bad_sample", f"response_length {length} does not fit {len(sample.tokens)} tokens (prompt + response)")
    for name, reason in (("loss_mask", "bad_sample"), ("rollout_log_probs", "missing_logprobs")):
        values = getattr(sample, name)
        if values is None or len(values) != length or None in values:
            given = "None" if values is None else f"{sum(v is not None for v in values)} entries"
            fail(
                reason,
                f"{name} has {given} for response_length {length}; it needs one entry for each response token "
                "(observations included), none for the prompt",
            )
