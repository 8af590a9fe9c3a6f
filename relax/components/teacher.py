# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The teacher role of on-policy distillation: its log-probs of the student's tokens, by the training backend.

It writes the table `teacher`, as `engine_teacher` does:

    student_sampled   teacher_logprobs [R]                      of the sampled tokens
    other selections  at_ids, teacher_at_logprobs [R, K]        at the ids that the two are compared on
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from relax.algorithms.distillation_options import AT_IDS, TEACHER, TEACHER_AT, DistillationOptions
from relax.backends.base import ModelSpec, Part, RankInfo, TrainBackend
from relax.components.base import Role
from relax.components.messages import ForwardReport, ReleasedGroup, partition_of
from relax.components.student_ids import STUDENT_IDS, STUDENT_TABLE, with_column
from relax.components.training_data import BatchSettings, column_blocks, make_scoring_plan, read_parts
from relax.distributed.bus.base import Bus
from relax.schedule.clock import Clock

Scores = dict[tuple[int, int], dict[str, np.ndarray]]


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


def columns_of(options: DistillationOptions) -> tuple[str, ...]:
    """Of the table `teacher`."""
    return (AT_IDS, TEACHER_AT) if options.of_ids else (TEACHER,)
