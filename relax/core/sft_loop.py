# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The loop of supervised fine-tuning. One rollout id is one optimizer step.

    loop      does                                                 waits for                      woken by
    produce   draws a step, plans it, has it written to the bus    fewer than `in_flight` steps   a trained step
    train     one optimizer step, then what is due after it        the next step on the bus       produce

The journal gets every decision before it takes effect. What a step holds follows from counters alone: the position of
the stream of rows and the step's number. So a resume needs no more than the position that the checkpoint reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relax.algorithms.reduce import divisor_of
from relax.components.sft_messages import Drawn, Ranks, Rows, SftData, SftRoles, SftTask, Unit, train_partition
from relax.components.sft_order import ShardOrder
from relax.core.checkpoint import REFERENCE, RunState, write_checkpoint
from relax.core.sft_evaluation import Evaluation
from relax.core.sft_metrics import SftMetrics
from relax.core.sft_prediction import Prediction
from relax.core.training_loop import chain_digest, first_error, trained_event
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule import events as ev
from relax.schedule.batch_plan import plan_units
from relax.schedule.clock import Clock
from relax.schedule.journal import Journal
from relax.utils.errors import DataError, RelaxError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SftSettings:
    """What the loop does. Intervals count steps."""

    num_steps: int
    batch: int  # units of a step
    dp_size: int
    max_tokens: int  # of a micro-batch
    balance: bool = True
    in_flight: int = 1  # steps that are drawn and not trained
    shards: int = 1  # partitions of a step
    packed: bool = False  # rows on the bus are those of single ranks
    eval_interval: int | None = None
    eval_before_train: bool = True
    predict_interval: int | None = None
    save_dir: Path | None = None
    save_interval: int | None = None
    save_hf: str | None = None
    keeps_reference: bool = False  # the loss compares with the weights at the start, which checkpoints keep


@dataclass(frozen=True)
class _Produced:
    """A step that is on the bus."""

    task: SftTask
    drawn: tuple[Drawn, ...]
    reached: int  # position of the stream behind it

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for share in self.drawn for unit in share.units)


@dataclass
class SftLoop:
    """Owns the journal; talks to the roles by their handles."""

    roles: SftRoles
    journal: Journal
    settings: SftSettings
    data: SftData
    clock: Clock
    metrics: SftMetrics
    prediction: Prediction | None = None
    trained: int = 0  # steps in the weights
    reached: int = 0  # position of the stream behind them
    digest: str = ""  # chained over all trained units
    stop_requested: bool = False
    on_versions: Callable[[WeightManifest, dict[str, int]], Awaitable[None]] | None = None
    _stopping: bool = False
    _exhausted: bool = False  # the epochs are over before the last step
    _last_saved: int = -1
    _evaluated: int = -1  # steps in the weights of the last evaluation
    _training: _Produced | None = None  # the step that the actor has in hand
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _ready: asyncio.Queue[_Produced | None] = field(default_factory=asyncio.Queue)  # None: no more rows

    async def run(self) -> None:
        """Train to the last step. The first failure cancels the rest and is raised as it is."""
        if self.prediction is not None:
            await self.prediction.start()
        try:
            async with asyncio.TaskGroup() as loops:
                producing = loops.create_task(self._produce(), name="controller.produce")
                await self._train()
                producing.cancel()
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    def decide(self, event: ev.Event) -> None:
        """Journal first, then effect."""
        self.journal.append(event)

    def take_back(self, state: RunState) -> None:
        """Go on where a checkpoint was written."""
        self.trained, self.reached, self.digest = state.rollout_id + 1, state.prompts_drawn, state.digest
        self.metrics.num_steps, self._last_saved = state.optimizer_steps, state.rollout_id

    # ------------------------------------------------------------------ produce

    async def _produce(self) -> None:
        step, reached = self.trained, self.reached
        while step < self.settings.num_steps:
            await self._room_for(step)
            produced = await self._produce_one(step, reached)
            await self._ready.put(produced)
            if produced is None:
                return
            step, reached = step + 1, produced.reached

    async def _room_for(self, step: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: step < self.trained + self.settings.in_flight)

    async def _produce_one(self, step: int, reached: int) -> _Produced | None:
        """Draw, plan and write a step; None when the rows are used up."""
        producers = self.roles.producers
        orders = [ShardOrder(shard, len(producers), self.settings.batch) for shard in range(len(producers))]
        drawn = await asyncio.gather(
            *(role.draw(step, order.count(reached)) for role, order in zip(producers, orders, strict=True))
        )
        self.stop_requested |= any(share.stop_requested for share in drawn)
        if any(share.exhausted for share in drawn):
            return None
        units = [unit for share in drawn for unit in share.units]
        ranks = self._plan(units)
        rows = self._rows(step, units, ranks)
        if len(producers) == 1:
            await producers[0].write(step, rows)
        else:
            await asyncio.gather(*(role.write(step, (one,)) for role, one in zip(producers, rows, strict=True)))
        task = SftTask(
            step=step,
            partitions=tuple(one.partition for one in rows),
            ranks=ranks,
            packed=self.settings.packed,
            divisor=sum(unit.counted for unit in units),
        )
        produced = _Produced(task, tuple(drawn), orders[0].reached(drawn[0].end))
        if self._reads_ahead:
            await self.roles.actor.fetch(task)
        return produced

    @property
    def _reads_ahead(self) -> bool:
        return self.settings.in_flight > 1

    def _plan(self, units: Sequence[Unit]) -> Ranks:
        return plan_units(
            [list(zip(unit.uids, unit.lengths, strict=True)) for unit in units],
            dp_size=self.settings.dp_size,
            max_tokens=self.settings.max_tokens,
            balance=self.settings.balance,
        )

    def _rows(self, step: int, units: Sequence[Unit], ranks: Ranks) -> tuple[Rows, ...]:
        """One partition a shard; a rank's row holds its samples of the shard, an unpacked one all of them."""
        shards, size = self.settings.shards, len(units) // self.settings.shards
        rows = []
        for shard in range(shards):
            own = [uid for unit in units[shard * size : (shard + 1) * size] for uid in unit.uids]
            if self.settings.packed:
                inside = set(own)
                shares = tuple(
                    (rank, tuple(uid for micro in micros for uid in micro if uid in inside))
                    for rank, micros in enumerate(ranks)
                )
            else:
                shares = ((0, tuple(own)),)
            rows.append(Rows(train_partition(step, shards, shard), shares))
        return tuple(rows)

    # ------------------------------------------------------------------ train

    async def _train(self) -> None:
        if self.trained == 0 and self.settings.eval_before_train:
            await self._evaluate(0)
        while self.trained < self.settings.num_steps and not self._stopping:
            waited = self.clock.now()
            produced = await self._ready.get()
            if produced is None:
                await self._end_early()
                return
            self.metrics.waited(self.clock.now() - waited)
            step = produced.task.step
            await self._train_one(produced)
            self._stopping = self.stop_requested  # a request that comes later ends the run after the next step
            await self._save_if_due(step)
            await self._evaluate_if_due(step)
            await self._predict_if_due(step)
            self.metrics.finish_step(step)

    async def _train_one(self, produced: _Produced) -> None:
        task, self._training = produced.task, produced
        self.decide(ev.Taken(task.step, 0))
        started = self.clock.now()
        report = await self.roles.actor.train_step(task)
        self.stop_requested |= report.stop_requested
        self._step(produced)
        await self._notify()
        self.journal.append(trained_event(report, (task.divisor,)))
        self.journal.append(ev.Timing("train", task.step, started, self.clock.now() - started))
        self.metrics.trained(produced.drawn, report, divisor_of(task.divisor), produced.reached)
        await asyncio.gather(*(self.roles.producers[0].drop(name) for name in task.partitions))

    def _step(self, produced: _Produced) -> None:
        """The weights contain the step."""
        self.digest = chain_digest(self.digest, [(unit.group, unit.digest) for unit in produced.units])
        self.decide(ev.Stepped(produced.task.step, self.digest))
        self.trained, self.reached = produced.task.step + 1, produced.reached
        self._training = None

    async def _end_early(self) -> None:
        """Rows that were left out made the epochs end before the last step."""
        logger.warning(
            "the epochs are over after %d of %d steps: rows were left out", self.trained, self.settings.num_steps
        )
        self._exhausted = True
        if self.trained == 0:
            raise DataError(
                f"--num-epoch: so many rows are left out that the epochs make no step of --global-batch-size "
                f"{self.settings.batch}"
            )
        if self._evaluated < self.trained:
            await self._evaluate_if_due(self.trained - 1)
        await self._save_if_due(self.trained - 1)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------------ what is due after a step

    async def _evaluate_if_due(self, step: int) -> None:
        if not self._stopping and self._is_due(step, self.settings.eval_interval):
            await self._evaluate(step + 1)

    async def _evaluate(self, trained: int) -> None:
        if not self.settings.eval_interval:
            return
        started = self.clock.now()
        values = await Evaluation(self.roles, self._plan).run(trained)
        self._evaluated = trained
        self.metrics.evaluated(trained, values, self.clock.now() - started)

    async def _predict_if_due(self, step: int) -> None:
        if self.prediction is None or self._stopping or not self._is_due(step, self.settings.predict_interval):
            return
        started = self.clock.now()
        engines = await self.prediction.run(step)
        self.metrics.predicted(self.clock.now() - started)
        if self.on_versions is not None and self.prediction.manifest is not None:
            await self.on_versions(self.prediction.manifest, engines)

    async def _save_if_due(self, step: int) -> None:
        if not self._is_due(step, self.settings.save_interval) and not self._is_last(step):
            return
        if self.settings.save_dir is not None and self._last_saved < step:
            await self.save(step)
        if self.settings.save_hf:
            await self.roles.actor.export_hf(self.settings.save_hf.replace("{rollout_id}", str(step)))

    async def save_at_exit(self) -> None:
        """After a failure or a signal: a checkpoint of the last step that is whole in the weights."""
        if self.settings.save_dir is None:
            return
        settled = await self.roles.actor.settle()
        if settled.contained is None:
            logger.warning("no checkpoint at the end: stopped inside step %d", self.trained)
            return
        if settled.contained == self.trained + 1 and self._training is not None:  # its report did not arrive any more
            self._step(self._training)
            self.metrics.num_steps = settled.num_steps
        if self._last_saved >= settled.contained - 1:
            return
        if settled.asleep:
            await self._wake_actor()
        await self.save(settled.contained - 1)

    async def _wake_actor(self) -> None:
        """Stopped inside a prediction: the engines give the cards back first, if they still can."""
        if self.prediction is not None and not self.prediction.engines_asleep:
            try:
                await self.roles.rollout.offload()
            except RelaxError as error:  # told in the log: engines that are gone hold no memory
                logger.warning("engines were not put to sleep before the last checkpoint: %s", error)
        await self.roles.actor.onload()

    async def save(self, step: int) -> None:
        """Write a checkpoint that contains steps 0 .. step."""
        assert self.settings.save_dir is not None
        started = self.clock.now()
        state = RunState(
            rollout_id=step,
            next_group=self.reached,
            prompts_drawn=self.reached,
            open_groups=(),
            dataset_digest=self.data.digest,
            digest=self.digest,
            optimizer_steps=self.metrics.num_steps,
            journal={"driver": self.journal.next_seq},
            order=self.data.order,
        )
        path = await write_checkpoint(self.settings.save_dir, state, self._save_actor)
        self.decide(ev.Checkpointed(step, str(path)))
        self._last_saved = step
        self.metrics.saved(self.clock.now() - started)
        logger.info("checkpoint written step=%d path=%s", step, path)

    async def _save_actor(self, folder: str) -> None:
        reference = str(Path(folder).with_name(REFERENCE)) if self.settings.keeps_reference else None
        await self.roles.actor.save(folder, reference)

    def _is_due(self, step: int, interval: int | None) -> bool:
        return bool(interval) and ((step + 1) % interval == 0 or self._is_last(step))

    def _is_last(self, step: int) -> bool:
        return self._stopping or self._exhausted or step + 1 >= self.settings.num_steps
