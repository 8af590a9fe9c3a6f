# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The teacher role of on-policy distillation: its log-probs of the student's tokens, by a forward or by an engine.

Both write the table `teacher`:

    student_sampled   teacher_logprobs [R]                      of the sampled tokens
    other selections  at_ids, teacher_at_logprobs [R, K]        at the ids that the two are compared on
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from relax.algorithms.distillation_options import AT_IDS, TEACHER, TEACHER_AT, DistillationOptions
from relax.backends.base import EngineClient, ModelSpec, Part, RankInfo, TrainBackend
from relax.components.base import Role
from relax.components.messages import ForwardReport, ReleasedGroup, partition_of
from relax.components.student_ids import STUDENT_IDS, STUDENT_TABLE, with_column
from relax.components.training_data import BatchSettings, column_blocks, make_scoring_plan, read_parts
from relax.data.columns import TrainSequence
from relax.distributed.bus.base import Bus
from relax.schedule.clock import Clock
from relax.utils.errors import EngineLost, InfrastructureError

Scores = dict[tuple[int, int], dict[str, np.ndarray]]
ATTEMPTS = 3
BACKOFF_S = 0.5  # before the second try; doubles


class LocalTeacher(Role):
    """A model of its own, computed by a training backend.

    consumes   rollout, media, student   waits for   rollout; the actor, for the student's ids
    produces   teacher                   feeds       actor
    """

    name = "teacher"

    def __init__(
        self,
        *,
        backend: TrainBackend,
        model: ModelSpec,
        options: DistillationOptions,
        settings: BatchSettings,
        bus: Bus,
        clock: Clock,
        deadline_s: float,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(executor)
        self._backend, self._model, self._options, self._settings = backend, model, options, settings
        self._bus, self._clock, self._deadline_s = bus, clock, deadline_s
        self.info: RankInfo | None = None

    async def start(self) -> RankInfo:
        self.info = await self._blocking(self._backend.open, self._model, None)
        return self.info

    async def score(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport:
        """Write the table for this rank's groups."""
        assert self.info is not None
        waited = self._clock.now()
        plan = make_scoring_plan(groups, self._settings, self.info.dp_size)
        tables = (STUDENT_TABLE,) if self._options.needs_student_ids else ()
        (part,) = await read_parts(
            self._bus, rollout_id, groups, tables, plan, self.info.dp_rank, deadline_s=self._deadline_s
        )
        started = self._clock.now()
        scores = await self._blocking(self._scores, part)
        names = {name: name for name in columns_of(self._options)}
        await self._bus.put(partition_of(rollout_id), "teacher", column_blocks(part, scores, names))
        self.step = rollout_id + 1
        return ForwardReport(started - waited, self._clock.now() - started, self.stop_requested)

    def _scores(self, part: Part) -> Scores:
        selection = self._options.token_selection
        if selection == "student_sampled":
            found = self._backend.score(part, frozenset({"log_probs"}))
            return {uid: {TEACHER: columns["log_probs"]} for uid, columns in found.items()}
        if selection == "teacher_topk":
            found = self._backend.score(part, frozenset({"top_ids", "top_log_probs"}))
            return {uid: {AT_IDS: c["top_ids"], TEACHER_AT: c["top_log_probs"]} for uid, c in found.items()}
        ids = {s.uid: s.columns[STUDENT_IDS] for micro in part.micro_batches for s in micro}
        if selection == "union":
            own = self._backend.score(part, frozenset({"top_ids"}))
            ids = {uid: np.concatenate([mine, own[uid]["top_ids"]], axis=1) for uid, mine in ids.items()}
        found = self._backend.score(with_column(part, AT_IDS, ids), frozenset({"log_probs_at"}))
        return {uid: {AT_IDS: ids[uid], TEACHER_AT: found[uid]["log_probs_at"]} for uid in ids}

    async def stop(self) -> None:
        await self._blocking(self._backend.close)


class EngineTeacher(Role):
    """Engines that read a response as a prompt and say how likely they find each token. No token is generated.

    One engine is asked for all samples of a group, so that its prompt is computed once.
    """

    name = "teacher"

    def __init__(
        self,
        *,
        engines: Sequence[EngineClient],
        options: DistillationOptions,
        bus: Bus,
        clock: Clock,
        deadline_s: float,
        timeout_s: float,
        concurrency: int = 64,
    ) -> None:
        super().__init__()
        self._engines, self._options, self._bus, self._clock = tuple(engines), options, bus, clock
        self._deadline_s, self._timeout_s = deadline_s, timeout_s
        self._permits = asyncio.Semaphore(concurrency)

    async def start(self) -> None:
        """Ask every engine what it is: a teacher that does not answer ends the run before its first rollout."""
        async with asyncio.timeout(self._timeout_s):
            await asyncio.gather(*(engine.info() for engine in self._engines))

    async def score(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport:
        waited = self._clock.now()
        settings = BatchSettings(1, 1, None, 1)
        (part,) = await read_parts(
            self._bus, rollout_id, groups, (), make_scoring_plan(groups, settings, 1), 0, deadline_s=self._deadline_s
        )
        started = self._clock.now()
        sequences = [s for micro in part.micro_batches for s in micro]
        found = await asyncio.gather(*(self._ask(sequence) for sequence in sequences))
        scores = {s.uid: columns for s, columns in zip(sequences, found, strict=True)}
        names = {name: name for name in columns_of(self._options)}
        await self._bus.put(partition_of(rollout_id), "teacher", column_blocks(part, scores, names))
        self.step = rollout_id + 1
        return ForwardReport(started - waited, self._clock.now() - started, self.stop_requested)

    async def _ask(self, sequence: TrainSequence) -> dict[str, np.ndarray]:
        engine = self._engines[sequence.group % len(self._engines)]
        payload = scoring_request(sequence, self._options.top_k if self._options.of_ids else 0)
        for attempt in itertools.count(1):
            try:
                async with self._permits, asyncio.timeout(self._timeout_s):
                    return read_scores(await engine.generate(payload), sequence, self._options)
            except (TimeoutError, InfrastructureError) as error:
                if attempt == ATTEMPTS:
                    raise EngineLost(
                        f"the teacher at {engine.url} did not score sample {sequence.uid} in {ATTEMPTS} tries of at "
                        f"most {self._timeout_s:g} s: {error!r}. Raise --opd-teacher-timeout-s, or look at its log"
                    ) from error
            await self._clock.sleep(BACKOFF_S * 2 ** (attempt - 1))
        raise AssertionError

    async def stop(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines))


def columns_of(options: DistillationOptions) -> tuple[str, ...]:
    """Of the table `teacher`."""
    return (AT_IDS, TEACHER_AT) if options.of_ids else (TEACHER,)


def scoring_request(sequence: TrainSequence, top: int) -> dict[str, Any]:
    """A `/generate` call that prefills the sample. Log-probs start one token early: the first has none."""
    return {
        "input_ids": sequence.tokens.tolist(),
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": sequence.prompt_len - 1,
        **({"top_logprobs_num": top} if top else {}),
    }


def read_scores(
    answer: Mapping[str, Any], sequence: TrainSequence, options: DistillationOptions
) -> dict[str, np.ndarray]:
    """The columns of one sample. Raises EngineLost for an answer that is not about its tokens."""
    entries = answer["meta_info"].get("input_token_logprobs") or []
    ids = [int(entry[1]) for entry in entries[1:]]
    expected = sequence.tokens[sequence.prompt_len :].tolist()
    if ids != expected:
        raise EngineLost(f"the teacher scored {len(ids)} tokens of other ids than the {len(expected)} asked for")
    if not options.of_ids:
        return {TEACHER: np.asarray([entry[0] for entry in entries[1:]], np.float32)}
    rows = answer["meta_info"].get("input_top_logprobs") or []
    if len(rows) != len(entries) or any(len(row or []) < options.top_k for row in rows[1:]):
        raise EngineLost(f"the teacher gave no {options.top_k} likeliest ids of each token")
    kept = [row[: options.top_k] for row in rows[1:]]
    shape = (len(kept), options.top_k)
    return {
        AT_IDS: np.asarray([[entry[1] for entry in row] for row in kept], np.float32).reshape(shape),
        TEACHER_AT: np.asarray([[entry[0] for entry in row] for row in kept], np.float32).reshape(shape),
    }
