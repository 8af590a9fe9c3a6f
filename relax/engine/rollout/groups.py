# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Generates, scores and filters groups: the working part of the rollout role.

    admit(groups) -> [permits] n generate calls at once -> scorer.score(samples) -> dynamic filter -> next_finished()

Every admitted group ends exactly once: accepted, dropped with a reason, cut off by `discard`, or returned by `stop`
as unfinished. All state lives in this object, on one event loop, without threads. The number of groups inside is
bounded by who admits (the staleness gate), so the queue of finished groups needs no bound of its own and a slow
consumer blocks nobody.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from relax.engine.rollout.attempts import Dropped, GenerationOptions, SampleRunner, Tally, fresh_copy
from relax.engine.rollout.hooks import ActiveTime, GenerateHook
from relax.engine.rollout.recorder import Interruption
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost, InfrastructureError, InternalError, UserCodeError
from relax.utils.faults import pause_at
from relax.utils.types import Sample

logger = logging.getLogger(__name__)

ABORT_DEADLINE_S = 60.0
ABORT_AGAIN_S = 0.5  # requests that reached an engine after the abort are aborted by the next one
ABORT_POLL_S = 0.01
PROTECTED_POLL_S = 0.25  # they run for seconds to minutes


@dataclass(frozen=True)
class AdmittedGroup:
    """One prompt and how many responses it gets. `prompt` carries its identity and its prepared ids and media."""

    group: int
    prompt: Sample
    num_samples: int


@dataclass
class FinishedGroup:
    """A group's end. `samples` are in (index, part) order; a dropped group holds those that were whole."""

    group: int
    samples: list[Sample]
    accepted: bool
    reason: str | None  # why it was dropped
    sampled_tokens: int  # all attempts, thrown away ones included
    attempts: int  # generate calls
    failures: dict[str, int]  # failed calls by reason
    seconds: dict[str, float]  # {"generate", "score", "reward_queue"}; waiting to generate counts as generate


@dataclass(frozen=True)
class Leftover:
    """What `stop` hands back: groups that ended but were not consumed, and groups that did not end."""

    finished: list[FinishedGroup]
    unfinished: list[AdmittedGroup]


class Scorer(Protocol):
    """Fills `reward` of each sample of a group; a sample that has one keeps it.

    What it returns, if anything, is the time in seconds that the last sample to start waited for its turn.
    """

    async def score(self, samples: list[Sample]) -> float | None: ...


class FilterOutput(Protocol):
    """What a dynamic filter returns."""

    keep: bool
    reason: str | None


DynamicFilter = Callable[[Any, list[Sample]], FilterOutput]


class EngineAborter(Protocol):
    """Aborts one request, or all requests, on every engine (the router does not pass this on)."""

    async def abort(self, rid: str | None = None) -> None: ...


@dataclass
class _Running:
    admitted: AdmittedGroup
    task: asyncio.Task[None]
    tally: Tally = field(default_factory=Tally)
    discarded: bool = False


class GroupGenerator:
    """See the module. Owned by the rollout role; all methods are called on one event loop.

    Args:
        args: the hooks' view of the configuration, given to user functions.
        hook: the generate function (`hooks.load_hook(path)`).
        sampling_params: dict of `sampling.SamplingOptions.params()`.
        options: seed, limits and policies.
        scorer: fills rewards; None leaves them empty (rewards are deferred).
        dynamic_filter: `fn(args, samples) -> DynamicFilterOutput(keep, reason)`; None keeps all.
        filter_path: its import path, for errors.
        engines: reaches every engine for aborts; None: nothing is aborted, dropped requests run out.
        clock: time and sleep.
    """

    def __init__(
        self,
        *,
        args: Any,
        hook: GenerateHook,
        sampling_params: dict[str, Any],
        options: GenerationOptions,
        clock: Clock,
        scorer: Scorer | None = None,
        dynamic_filter: DynamicFilter | None = None,
        filter_path: str = "--dynamic-sampling-filter-path",
        engines: EngineAborter | None = None,
    ) -> None:
        self._args, self._options, self._clock, self._scorer = args, options, clock, scorer
        self._filter, self._filter_path, self._engines = dynamic_filter, filter_path, engines
        self._open = asyncio.Event()
        self._open.set()
        self._active = ActiveTime()
        self._running: dict[int, _Running] = {}
        self._leaving: set[asyncio.Task[None]] = set()  # of discarded groups, until they have cleaned up
        self._finished: asyncio.Queue[FinishedGroup | None] = asyncio.Queue()
        self._error: Exception | None = None
        self._stopped = False
        self.drop_counts: Counter[str] = Counter()
        self.failure_counts: Counter[str] = Counter()
        self.discarded_tokens = 0  # sampled for discarded groups
        self._runner = SampleRunner(
            args=args,
            hook=hook,
            sampling_params=sampling_params,
            options=options,
            clock=clock,
            active=self._active,
            wait_open=self.wait_open,
        )
        logger.info("group generator ready max_running_samples=%d", options.max_running_samples)

    @property
    def num_running(self) -> int:
        """Groups that have not ended."""
        return len(self._running)

    # ------------------------------------------------------------------ flow

    def admit(self, groups: Iterable[AdmittedGroup]) -> None:
        """Start groups. The samples of a group ask for permits together, so the engine prefills the prompt once."""
        if self._stopped:
            raise InternalError("admit after stop")
        for admitted in groups:
            if admitted.group in self._running:
                raise InternalError(f"group {admitted.group} is admitted twice")
            running = _Running(admitted, None, Tally())  # type: ignore[arg-type]
            self._running[admitted.group] = running
            running.task = asyncio.create_task(self._run_group(running), name=f"group-{admitted.group}")

    async def next_finished(self) -> FinishedGroup:
        """The next group that ends, in order of completion. Raises the error that failed the run, if one did."""
        if self._error is None or not self._finished.empty():
            finished = await self._finished.get()
            if finished is not None:
                return finished
        self._finished.put_nowait(None)  # every later call raises, too
        assert self._error is not None
        raise self._error

    def discard(self, groups: Iterable[int]) -> None:
        """Cut off groups that nobody wants any more; they do not come out of `next_finished`.

        A group that has ended and waits to be consumed still comes; an unknown one is a no-op.
        """
        for number in groups:
            running = self._running.pop(number, None)
            if running is not None:
                running.discarded = True
                self._leaving.add(running.task)
                running.task.add_done_callback(partial(self._left, running))
                running.task.cancel()

    def _left(self, running: _Running, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        self.discarded_tokens += running.tally.sampled_tokens

    def resize(self, max_running_samples: int) -> None:
        """Change how many generate calls run at a time, as engines join and leave."""
        self._runner.resize(max_running_samples)

    async def wait_open(self) -> None:
        """Return when the rollout is not paused."""
        await self._open.wait()

    def pause(self) -> None:
        """Hold back new calls and new engine requests; those that run go on."""
        self._open.clear()
        self._active.pause()

    def resume(self) -> None:
        """Let calls and requests go on; interrupted samples are generated again."""
        self._active.resume()
        self._open.set()

    async def abort(self, deadline_s: float = ABORT_DEADLINE_S) -> None:
        """Pause, and cut off every running engine request. Returns when none runs; `resume` starts them again."""
        self.pause()
        await self._cut_off(None, deadline_s)

    async def interrupt(self, deadline_s: float = ABORT_DEADLINE_S) -> int:
        """Cut off the requests of responses that go on afterwards (--partial-rollout) -> how many. Call it paused.

        Protected responses, and those of user functions, run on.
        """
        number = len(self._request_ids("cut"))
        await self._cut_off("cut", deadline_s)
        return number

    async def finish_protected(self, deadline_s: float) -> None:
        """Wait until no request of a protected response runs, at most `deadline_s`. Call it paused."""
        end = self._clock.now() + deadline_s
        while left := self._request_ids("protected"):
            if self._clock.now() >= end:
                logger.warning("protected requests are cut off after %g s: %s", deadline_s, left[:4])
                return
            await self._clock.sleep(PROTECTED_POLL_S)

    async def _cut_off(self, kind: Interruption | None, deadline_s: float) -> None:
        end, next_abort = self._clock.now() + deadline_s, self._clock.now()
        while left := self._request_ids(kind):
            if self._clock.now() >= end:
                raise EngineLost(f"{len(left)} requests did not end within {deadline_s:g} s of an abort: {left[:4]}")
            if self._engines is not None and self._clock.now() >= next_abort:
                if kind is None:
                    await self._engines.abort()
                else:
                    await asyncio.gather(*(self._engines.abort(rid) for rid in left))
                next_abort = self._clock.now() + ABORT_AGAIN_S
            await self._clock.sleep(ABORT_POLL_S)

    def _request_ids(self, kind: Interruption | None) -> list[str]:
        tallies = [running.tally for running in self._running.values()]
        return [rid for tally in tallies for rid in tally.request_ids(kind)]

    async def stop(self) -> Leftover:
        """End everything. Groups that have not ended are returned as they were admitted. No task is left."""
        self._stopped = True
        tasks = [*(running.task for running in self._running.values()), *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks and self._engines is not None:
            await self._abort_request(None, self._engines)
        unfinished = [running.admitted for _, running in sorted(self._running.items())]
        self._running.clear()
        finished = []
        while not self._finished.empty():
            group = self._finished.get_nowait()
            if group is not None:
                finished.append(group)
        return Leftover(finished, unfinished)

    # ------------------------------------------------------------------ one group

    async def _run_group(self, running: _Running) -> None:
        started = self._clock.now()
        samples: list[Sample] = []
        seconds = {"generate": 0.0, "score": 0.0, "reward_queue": 0.0}
        reason: str | None = None
        try:
            try:
                await self._generate(running, samples)
            finally:
                seconds["generate"] = self._clock.now() - started
            scoring = self._clock.now()
            seconds["reward_queue"] = await self._score(samples)
            seconds["score"] = self._clock.now() - scoring
            reason = self._rejects(samples)
        except Dropped as drop:
            reason = drop.reason
            logger.warning("group dropped group=%d reason=%s error=%s", running.admitted.group, reason, drop)
        except asyncio.CancelledError:
            if not self._stopped and not running.discarded:
                self._fail(InternalError(f"the task of group {running.admitted.group} was cancelled from outside"))
            raise
        except Exception as error:  # told by `next_finished`: the run fails, the group stays unfinished
            if not running.discarded:
                self._fail(error)
            return
        self._finish(running, samples, reason, seconds)

    def _finish(self, running: _Running, samples: list[Sample], reason: str | None, seconds: dict[str, float]) -> None:
        """The one place where a group ends; no await, so it cannot be cut in two."""
        group, tally = running.admitted.group, running.tally
        if running.discarded:  # its id may be running again
            return
        del self._running[group]
        if reason is not None:
            self.drop_counts[reason] += 1
        self.failure_counts.update(tally.failures)
        self._finished.put_nowait(
            FinishedGroup(
                group=group,
                samples=sorted(samples, key=lambda s: (s.index or 0, s.part or 0)),
                accepted=reason is None,
                reason=reason,
                sampled_tokens=tally.sampled_tokens,
                attempts=tally.attempts,
                failures=dict(tally.failures),
                seconds=seconds,
            )
        )

    async def _generate(self, running: _Running, samples: list[Sample]) -> None:
        """Run all samples of a group at once; the first that is dropped or fails ends its siblings."""
        admitted, tally = running.admitted, running.tally
        prompts = [fresh_copy(admitted.prompt, index) for index in range(admitted.num_samples)]
        for prompt in prompts:
            prompt.group_index = admitted.group
        tasks = [asyncio.create_task(self._runner.run(prompt, tally)) for prompt in prompts]
        try:
            for task in asyncio.as_completed(tasks):
                samples.extend(await task)
        finally:
            rids = tally.request_ids()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._engines is not None and not self._stopped:
                await asyncio.gather(*(self._abort_request(rid, self._engines) for rid in rids))

    async def _abort_request(self, rid: str | None, engines: EngineAborter) -> None:
        try:
            await engines.abort(rid)
        except InfrastructureError as error:  # the log is told: the request runs to its end and nobody reads it
            logger.warning("request left running rid=%s error=%s", rid or "all", error)

    async def _score(self, samples: list[Sample]) -> float:
        """Seconds in which samples waited for their turn."""
        if self._scorer is None:
            return 0.0
        await pause_at("reward")
        queued = await self._scorer.score(samples)  # has a failure policy of its own: what it raises ends the run
        unscored = [s for s in samples if s.reward is None]
        if unscored:
            raise Dropped("unscored", f"{len(unscored)} of {len(samples)} samples have no reward after scoring")
        return queued or 0.0

    def _rejects(self, samples: list[Sample]) -> str | None:
        """The dynamic filter's reason to drop, or None to keep."""
        if self._filter is None:
            return None
        try:
            output = self._filter(self._args, samples)
            if inspect.isawaitable(output):
                raise TypeError("a dynamic filter is a plain function, not an `async def`")
            return None if output.keep else str(output.reason or "filtered")
        except UserCodeError:
            raise
        except Exception as error:  # any error of user code: fails the run, because a filter fails on every group
            message = f"raised {type(error).__name__}: {error}"
            sample = f"group {samples[0].group_index}" if samples else None
            raise UserCodeError(message, path=self._filter_path, sample=sample) from error

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._finished.put_nowait(None)
        logger.error("group generator failed error=%s", error)
