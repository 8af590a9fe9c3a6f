# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The teacher role whose log-probs engines tell: of this run, or one that runs already."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence

import numpy as np

from relax.algorithms.distillation_options import DistillationOptions
from relax.backends.base import EngineClient, EngineInfo
from relax.backends.engine_client import EngineRefused
from relax.components.base import Role
from relax.components.messages import ForwardReport, ReleasedGroup, partition_of
from relax.components.student_ids import STUDENT_TABLE
from relax.components.teacher import columns_of
from relax.components.teacher_questions import Vocabulary, id_problem, read_scores, scoring_request, spelling_request
from relax.components.training_data import BatchSettings, column_blocks, make_scoring_plan, read_parts
from relax.data.columns import TrainSequence
from relax.distributed.bus.base import Bus
from relax.schedule.clock import Clock
from relax.utils.errors import ConfigError, EngineLost, InfrastructureError

logger = logging.getLogger(__name__)

ATTEMPTS = 3
BACKOFF_S = 0.5  # before the second try; doubles


class EngineTeacher(Role):
    """Engines that read a response as a prompt and say how likely they find each token. No token is generated.

    One engine is asked for all samples of a group, whose prompt SGLang then computes once.

    consumes   rollout, student   waits for   rollout; the actor, for the student's ids
    produces   teacher            feeds       actor
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
        flag: str = "--teacher-hf-checkpoint",
        vocabulary: Vocabulary | None = None,
        ids_per_position: bool = False,
    ) -> None:
        """`vocabulary`: the student's, where it has not been compared with the teacher's folder. `ids_per_position`:
        the engines take lists of ids for each position, whether they say so or not."""
        super().__init__()
        self._engines, self._options, self._bus, self._clock = tuple(engines), options, bus, clock
        self._deadline_s, self._timeout_s = deadline_s, timeout_s
        self._permits = asyncio.Semaphore(concurrency)
        self._flag, self._vocabulary, self._ids_per_position = flag, vocabulary, ids_per_position

    async def start(self) -> None:
        """Ask every engine what it is: a teacher that does not fit ends the run before its first rollout."""
        await asyncio.gather(*(self._meet(engine) for engine in self._engines))

    async def _meet(self, engine: EngineClient) -> None:
        who = self._who(engine)
        try:
            async with asyncio.timeout(self._timeout_s):
                info = await engine.info()
                self._check_words(info, who)
                if self._vocabulary is not None:
                    await self._check_ids(engine, info, self._vocabulary)
        except (TimeoutError, InfrastructureError) as error:
            what = f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else error
            raise EngineLost(
                f"{who} is not there: {what}. It must serve before the run starts; if it needs longer to answer, "
                f"raise --opd-teacher-timeout-s"
            ) from error
        except EngineRefused as error:
            raise ConfigError(f"{who} does not answer as SGLang's engines do: {error}") from error

    def _check_words(self, info: EngineInfo, who: str) -> None:
        if not self._options.needs_student_ids or self._ids_per_position or info.raw.get("token_ids_per_position"):
            return
        raise ConfigError(
            f"{who} takes one token_ids_logprob for all positions, as far as it says, and --opd-token-selection "
            f"{self._options.token_selection} asks for other ids at each: use a native engine, teacher_topk or "
            "--opd-teacher-load; for a server that takes a list for each position set RELAX_OPD_PER_POS_TOKEN_IDS=1"
        )

    async def _check_ids(self, engine: EngineClient, info: EngineInfo, student: Vocabulary) -> None:
        """A text must have the same ids there and here. A server without a tokenizer is only asked for its size."""
        found: list[int] | None = None
        if student.ids:
            try:
                answer = await engine.generate(spelling_request(student.text))
                found = [int(entry[1]) for entry in answer["meta_info"]["input_token_logprobs"]]
            except EngineRefused as error:
                logger.warning("token ids are not compared teacher=%s reason=%s", engine.url, error)
        problem = id_problem(student, found, info.raw.get("vocab_size"))
        if problem:
            raise ConfigError(f"{self._who(engine)} {problem}: a teacher must share the token ids of --hf-checkpoint")

    def _who(self, engine: EngineClient) -> str:
        return f"the teacher at {engine.url} ({self._flag})"

    async def score(self, rollout_id: int, groups: tuple[ReleasedGroup, ...]) -> ForwardReport:
        waited = self._clock.now()
        plan = make_scoring_plan(groups, BatchSettings(1, 1, None, 1), 1)
        tables = (STUDENT_TABLE,) if self._options.needs_student_ids else ()
        (part,) = await read_parts(self._bus, rollout_id, groups, tables, plan, 0, deadline_s=self._deadline_s)
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
        payload = scoring_request(sequence, self._options)
        for attempt in itertools.count(1):
            try:
                async with self._permits, asyncio.timeout(self._timeout_s):
                    return read_scores(await engine.generate(payload), sequence, self._options)
            except (TimeoutError, InfrastructureError) as error:
                if attempt == ATTEMPTS:
                    what = f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else error
                    raise EngineLost(
                        f"{self._who(engine)} did not score sample {sequence.uid} in {ATTEMPTS} tries of at most "
                        f"{self._timeout_s:g} s: {what}. Raise --opd-teacher-timeout-s, or look at its log"
                    ) from error
            await self._clock.sleep(BACKOFF_S * 2 ** (attempt - 1))
        raise AssertionError

    async def stop(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines))
