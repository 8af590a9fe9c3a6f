# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The loop of every mode. What differs between modes is who shares cards and what the gate admits.

    loop      does                                        waits for                     woken by
    admit     opens groups while the gate has room        a free slot                   a drop, an install
    collect   applies what ended, binds rollouts          enough accepted groups        the rollout role's report
    train     bound rollout -> weights in every engine    the next bound rollout        collect

The journal gets every decision before it takes effect; the scheduler changes by journalled events alone.

In deterministic mode (docs/determinism.md) the order of decisions is fixed as well: collect decides in the order of
group ids, admits at once what a decision makes room for, and train decides only while collect has nothing to do.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from relax.components.messages import (
    AcceptedGroup,
    AdvantageReport,
    EngineStatus,
    EvalReport,
    GroupOrder,
    ReleaseReport,
    Roles,
    RolloutReport,
    StoredGroup,
    TrainReport,
    TrainTask,
    partition_of,
)
from relax.core.checkpoint import REFERENCE, RunState, write_checkpoint
from relax.core.critic_files import critic_target
from relax.core.part_reports import join_advantages, join_releases, join_trainings
from relax.core.prompt_order import PromptOrder
from relax.core.run_folder import RunFolder
from relax.core.step_metrics import StepMetrics
from relax.core.trainers import Trainers
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.trace import sync_files
from relax.schedule import events as ev
from relax.schedule.clock import Clock
from relax.schedule.journal import Journal, end_of_journal
from relax.schedule.scheduler import Scheduler
from relax.utils.errors import EngineLost, InfrastructureError, RelaxError, Stuck, WeightSyncError
from relax.utils.faults import pause_at

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0  # one long poll of the rollout role
BROKEN = frozenset({"user_error", "bad_sample", "unscored"})  # drops that come of a function, not of chance


@dataclass(frozen=True)
class LoopSettings:
    """What the loop does besides generating and training. Intervals count rollouts."""

    mode: str  # "colocate" (actor and engines take turns) | "fully_async" | "hybrid"
    tables: tuple[str, ...]  # of the actor's reads, besides rollout and media
    update_weights_interval: int = 1
    ref_update_interval: int | None = None
    actor_scores_reference: bool = False
    reference_first: bool = False  # it does so before the advantages, which read it
    actor_scores_old: bool = False
    parts_per_step: int = 1  # of an optimizer step, when a rollout is trained part after part
    eval_interval: int | None = None
    eval_before_train: bool = True
    save_dir: Path | None = None
    save_interval: int | None = None
    save_hf: str | None = None  # path with {rollout_id}, written with each checkpoint and at the end
    rollout_deadline_s: float = 1800.0  # without any group ending, the run is stuck
    critic_only_steps: float = 0  # rollouts that train the critic alone
    critic_save: str | None = None  # folder of the critic's checkpoints; None: in those of the run
    asks_student: bool = False  # the actor writes its likeliest ids before the teacher is asked
    reference_identity: str = ""  # `weights_identity` of the initial reference
    engines_return: bool = False  # dead engines are started again, so a run may be without one for a while


@dataclass
class TrainingLoop:
    """Owns scheduler and journal; talks to the roles by their handles."""

    roles: Roles
    scheduler: Scheduler
    journal: Journal
    order: PromptOrder
    settings: LoopSettings
    clock: Clock
    metrics: StepMetrics
    dataset_digest: str = ""
    digest: str = ""  # chained over all trained groups
    on_step: Callable[[int], Awaitable[None]] | None = None
    on_versions: Callable[[WeightManifest, dict[str, int]], Awaitable[None]] | None = None  # published, {engine: held}
    on_no_engine: Callable[[Sequence[str]], Awaitable[None]] | None = None  # engines that refused the newest version
    manifest: WeightManifest | None = None  # the newest published version
    has_version: asyncio.Event = field(default_factory=asyncio.Event)  # there is one
    installing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while versions or engines change
    stop_requested: bool = False  # by a role's /stop_service; the run ends after the rollout in training
    _stopping: bool = False
    _orders: dict[int, GroupOrder] = field(default_factory=dict)  # admitted and not yet contained
    _finished: dict[int, AcceptedGroup] = field(default_factory=dict)  # those of them that are in the trace
    _outbox: list[GroupOrder] = field(default_factory=list)  # admitted and not yet told to the rollout role
    _taken: int = -1  # the last rollout that training took
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _bound: asyncio.Queue[ReleaseReport] = field(default_factory=asyncio.Queue)
    _reference_version: int = 0  # weight version of the reference
    _eval: asyncio.Task[None] | None = None
    _last_saved: int = -1
    _last_report: int = 0  # number of the rollout role's newest report
    _dropped_in_a_row: Counter[str] = field(default_factory=Counter)  # by reason, since the last accepted group
    _training: bool = False  # the train loop has a rollout in hand

    def __post_init__(self) -> None:
        roles, settings = self.roles, self.settings
        self.trainers = Trainers(
            roles.actor,
            roles.critic,
            shared=settings.mode == "colocate",
            only_critic=settings.critic_only_steps,
            scores_reference=settings.reference_first,
            proposes=settings.asks_student,
        )

    async def run(self) -> None:
        """Train until the scheduler is finished. The first failure cancels the other loops and is raised as it is."""
        await self._first_version()
        try:
            async with asyncio.TaskGroup() as loops:
                feeding = [
                    loops.create_task(loop(), name=f"controller.{loop.__name__.strip('_')}")
                    for loop in (self._admit, self._collect)
                ]
                await self._train()
                for task in feeding:  # they have ended by themselves, unless a stop was requested
                    task.cancel()
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            if self._eval is not None:
                self._eval.cancel()
                await asyncio.gather(self._eval, return_exceptions=True)

    def decide(self, event: ev.Event) -> None:
        """Journal first, then effect."""
        self.journal.append(event)
        self.scheduler.apply(event)

    def take_back(self, state: RunState, restored: Sequence[AcceptedGroup]) -> None:
        """Go on where a checkpoint was written: `restored` open groups are finished, others are generated again."""
        self.order.drawn, self.order.postponed = state.prompts_drawn, state.draw_again
        self.digest, self.metrics.num_steps = state.digest, state.optimizer_steps
        self._last_saved, self._reference_version = self.scheduler.stepped - 1, state.reference_version
        stored = {group.order.group: group for group in state.finished_groups}
        for accepted in restored:
            group = stored.pop(accepted.group)
            order, entry = group.order, asdict(accepted.entry)
            self.decide(
                ev.Restored(
                    order.group, order.epoch, order.row, group.version, accepted.oldest, accepted.newest, **entry
                )
            )
            self._orders[order.group], self._finished[order.group] = order, accepted
        self.order.again(sorted((*(g.order for g in stored.values()), *state.open_groups), key=lambda o: o.group))

    # ------------------------------------------------------------------ loops

    async def _admit(self) -> None:
        while self.scheduler.next_rollout < self.scheduler.settings.num_rollouts:
            self._fill()
            if self._outbox:
                await pause_at("admit")
                orders, self._outbox = self._outbox, []
                await self.roles.rollout.admit(tuple(o for o in orders if o.group in self.scheduler.open))
            async with self._changed:
                await self._changed.wait_for(
                    lambda: (
                        self._outbox
                        or self.scheduler.admissible() > 0
                        or self.scheduler.next_rollout >= self.scheduler.settings.num_rollouts
                    )
                )

    def _fill(self) -> None:
        """Admit as many groups as the gate lets in."""
        while self.scheduler.admissible():
            order = self.order.next_again()
            if order is None:
                epoch, row = self.order.next_fresh()
                event = self.scheduler.admit(epoch, row)
                order = GroupOrder(event.group, epoch, row)
            else:
                event = self.scheduler.admit_again(order.group, order.epoch, order.row)
            self.decide(event)
            self._orders[order.group] = order
            self._outbox.append(order)

    async def _collect(self) -> None:
        await self._bind()  # what a resumed run has read back may be enough
        last_progress = self.clock.now()
        while self.scheduler.next_rollout < self.scheduler.settings.num_rollouts:
            need = max(1, self.scheduler.needed())
            report = await self.roles.rollout.report(need, PATIENCE_S)
            if report.number and report.number <= self._last_report:
                continue  # it arrives again: what it tells is decided
            self._last_report = report.number
            now = self.clock.now()
            waits_for_training = self._training and not self._waiting_for_rollout()
            if report.accepted or report.dropped or waits_for_training or not self.scheduler.engines:
                last_progress = now
            elif now - last_progress > self.settings.rollout_deadline_s:
                raise Stuck(
                    f"no group ended for {now - last_progress:.0f} s while rollout {self.scheduler.next_rollout} "
                    f"needs {need} more; {len(self.scheduler.open)} groups are open: see the engines' logs"
                )
            await self._apply(report)
        await self._abandon()

    def _waiting_for_rollout(self) -> bool:
        return any(group.state.value == "admitted" for group in self.scheduler.open.values())

    async def _apply(self, report: RolloutReport) -> None:
        self.stop_requested |= report.stop_requested
        self.metrics.rollout_report(report)
        ended = {**dict(report.dropped), **{accepted.group: accepted for accepted in report.accepted}}
        for group in sorted(ended) if self._deterministic else ended:
            self._end(group, ended[group])
            self._check_hope(ended[group])
            if self._deterministic:  # the room that a drop makes is given away before anything else is decided
                self._fill()
                await self._notify()
                await self._bind()
        await self._bind()

    def _check_hope(self, ended: AcceptedGroup | str) -> None:
        """End a run that would draw and drop prompts for ever.

        A function that fails is not waited for long; a filter may turn a whole pass over the data down, not two.
        """
        found = self._dropped_in_a_row
        if isinstance(ended, AcceptedGroup):
            found.clear()
            return
        found[ended] += 1
        broken, few = sum(found[reason] for reason in BROKEN), 8 * self.scheduler.settings.rollout_batch_size
        if broken < few and found.total() < max(few, 2 * self.order.size):
            return
        told = ", ".join(f"{reason} {count}" for reason, count in found.most_common())
        raise Stuck(
            f"{found.total()} groups in a row were dropped and none was accepted ({told}): see the log of the rollout "
            "role; --rollout-failure-policy fail or --reward-failure-policy fail ends a run at the first error"
        )

    @property
    def _deterministic(self) -> bool:
        return self.scheduler.settings.deterministic

    def _end(self, group: int, ended: AcceptedGroup | str) -> None:
        """Accept a group, or drop it for a reason."""
        if group not in self.scheduler.open:
            return
        if isinstance(ended, AcceptedGroup):
            self._finished[group] = ended
            self.decide(ev.Accepted(group, ended.oldest, ended.newest))
        else:
            self.decide(ev.Dropped(group, ended))
            self.metrics.dropped(ended)
            self._orders.pop(group, None)

    async def _bind(self) -> None:
        await self._abandon()
        while (event := self.scheduler.bind()) is not None:
            self.decide(event)
            self._take_next()
            drops = self._drop_unusable()
            release = await self.roles.rollout.release(event.rollout_id, event.groups, event.last)
            await self._bound.put(release)
            await self._stop_groups(drops)
        await self._notify()

    async def _abandon(self) -> None:
        await self._stop_groups(self._drop_unusable())

    def _drop_unusable(self) -> tuple[int, ...]:
        """Drop what no later rollout may train; its prompts are drawn again, under new ids."""
        drops = self.scheduler.unusable()
        for event in drops:
            self.decide(event)
            self.metrics.dropped(event.reason)
            order = self._orders.pop(event.group)
            self._finished.pop(event.group, None)
            self.order.draw_again(order.epoch, order.row)
        return tuple(event.group for event in drops)

    async def _stop_groups(self, groups: tuple[int, ...]) -> None:
        if groups:
            await self.roles.rollout.abandon(groups)

    async def _train(self) -> None:
        while not self.scheduler.finished and not self._stopping:
            rollout_id = self.scheduler.stepped
            waited = self.clock.now()
            release = await self._bound.get()
            self._training = True
            self.metrics.start_step(self.clock.now() - waited)
            await self._train_one(rollout_id, release)
            self._stopping = self.stop_requested  # a request that comes later ends the run after the next rollout
            # Engines get the new weights first, unless a publish puts the actor to sleep, or lets new groups in: a
            # deterministic checkpoint is written while none is being generated.
            save_first = self.settings.mode == "colocate" or self._deterministic
            if save_first:
                await self._save_if_due(rollout_id)
            if self._is_due(rollout_id, self.settings.update_weights_interval) or self._is_last(rollout_id):
                await self._publish(rollout_id + 1)
            if not save_first:
                await self._save_if_due(rollout_id)
            await self._evaluate_if_due(rollout_id)
            self.metrics.finish_step(rollout_id, self.scheduler)
            if self.on_step is not None:
                await self.on_step(rollout_id)
            self._training = False
        if self._eval is not None:
            await self._eval

    async def _train_one(self, rollout_id: int, release: ReleaseReport) -> None:
        if self.settings.mode == "colocate":
            await self.roles.rollout.offload()
            await self.trainers.wake()
        self._take(rollout_id)
        started = self.clock.now()
        release, advantages, report = await self._train_parts(rollout_id, release)
        if self._deterministic:
            await self._exhausted()
        self._step(rollout_id)
        self.journal.append(trained_event(report, advantages.divisors))
        if (critic := self.trainers.critic_report) is not None:
            self.journal.append(trained_event(critic, advantages.divisors, ev.CriticTrained))
            self.metrics.critic_trained(advantages, critic)
        self.journal.append(ev.Timing("train", rollout_id, started, self.clock.now() - started))
        self.metrics.trained(release, advantages, report)
        await self.roles.rollout.drop(partition_of(rollout_id))

    async def _train_parts(
        self, rollout_id: int, first: ReleaseReport
    ) -> tuple[ReleaseReport, AdvantageReport, TrainReport]:
        """Train a rollout part after part, or as one part; meanwhile the next one is prepared."""
        releases: list[ReleaseReport] = []
        advantages: list[AdvantageReport] = []
        reports: list[TrainReport] = []
        prepared: asyncio.Queue[tuple[ReleaseReport, AdvantageReport]] = asyncio.Queue()
        async with asyncio.TaskGroup() as preparing:
            preparing.create_task(self._prepare_parts(rollout_id, first, prepared))
            while not releases or not releases[-1].last:
                waited = self.clock.now()
                release, weighed = await prepared.get()
                if releases:
                    self.metrics.waited(self.clock.now() - waited)
                task = TrainTask(
                    rollout_id=rollout_id,
                    groups=release.groups,
                    tables=self.settings.tables,
                    divisors=weighed.divisors,
                    score_reference=self.settings.actor_scores_reference and not self.settings.reference_first,
                    score_old=self.settings.actor_scores_old,
                    first=not releases,
                    last=release.last,
                )
                releases.append(release)
                advantages.append(weighed)
                reports.append(await self.trainers.train(task))
        report = join_trainings(reports)
        self.stop_requested |= report.stop_requested
        return join_releases(releases), join_advantages(advantages, self.settings.parts_per_step), report

    async def _prepare_parts(
        self, rollout_id: int, release: ReleaseReport, prepared: asyncio.Queue[tuple[ReleaseReport, AdvantageReport]]
    ) -> None:
        """Let the other roles write their columns, part after part."""
        first = True
        while True:
            groups = release.groups
            scorers = (self.roles.reference, self.roles.actor_fwd, self.roles.teacher)
            forwards = [role.score(rollout_id, groups) for role in scorers if role]
            advantages, stop, *scored = await asyncio.gather(
                self.roles.advantages.compute(rollout_id, tuple(g.group for g in groups), release.last),
                self.trainers.prepare(rollout_id, release, first=first),
                *forwards,
            )
            first = False
            self.stop_requested |= stop or any(answer.stop_requested for answer in (advantages, *scored))
            await prepared.put((release, advantages))
            if release.last:
                return
            release = await self._bound.get()

    def _step(self, rollout_id: int) -> None:
        """The weights contain the rollout: its groups are done with."""
        groups = sorted(self.scheduler.bound[rollout_id])
        self.digest = chain_digest(self.digest, [(group, self._finished[group].entry.digest) for group in groups])
        self.decide(ev.Stepped(rollout_id, self.digest))
        for group in groups:
            del self._orders[group], self._finished[group]

    def _take(self, rollout_id: int) -> None:
        if self._taken < rollout_id:
            self._taken = rollout_id
            self.decide(ev.Taken(rollout_id, 0))

    def _take_next(self) -> None:
        """In deterministic mode a rollout counts as taken once a part is bound and those before it are trained."""
        if self._deterministic and self.scheduler.stepped in self.scheduler.bound:
            self._take(self.scheduler.stepped)

    async def _exhausted(self) -> None:
        """Wait until the gate has nothing left to admit under the serving version: nothing is being generated."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.scheduler.exhausted)

    # ------------------------------------------------------------------ weights

    async def _first_version(self) -> None:
        """Engines start with whatever they loaded; nothing is sampled before they hold the trainer's weights."""
        version = self.scheduler.stepped
        manifest = await self.roles.actor.publish(version)
        async with self.installing:
            self._published(manifest)
            for status in await self._usable(await self.roles.rollout.install(manifest)):
                self.decide(ev.EngineJoined(status.engine, version))
        await self._tell_versions(manifest)
        if self.roles.actor_fwd is not None and version > 0:
            await self.roles.actor_fwd.load_version(manifest)
        if version > self._reference_version and self._is_due(version - 1, self.settings.update_weights_interval):
            await self._refresh_reference(manifest)  # a checkpoint that was written before its version was published
        if self.settings.mode == "colocate":
            await self.trainers.sleep()
        if self.settings.eval_interval and self.settings.eval_before_train and version == 0:
            await self._start_eval(-1, version)

    async def _publish(self, version: int) -> None:
        if self._eval is not None:
            await self._eval  # an evaluation pins its version
            self._eval = None
        started = self.clock.now()
        manifest = await self.roles.actor.publish(version)
        async with self.installing:
            stall_s = await self._install(manifest)
        await self._tell_versions(manifest)
        self.metrics.synced(self.clock.now() - started, stall_s, manifest.moved_bytes)
        await self._notify()

    async def _install(self, manifest: WeightManifest) -> float:
        """Give a version to every role that holds weights -> seconds in which an engine generated nothing."""
        version, shared = manifest.version, self.settings.mode == "colocate"
        self._published(manifest)
        if self.roles.actor_fwd is not None:
            await self.roles.actor_fwd.load_version(manifest)
        await self._refresh_reference(manifest)
        if shared:
            await self.roles.actor.offload()
            await self.roles.rollout.onload(("weights",))
        statuses = await self.roles.rollout.install(manifest)
        if shared:
            await self.roles.rollout.onload(("kv_cache",))
        for status in await self._usable(statuses):
            known = status.engine in self.scheduler.engines
            self.decide((ev.Installed if known else ev.EngineJoined)(status.engine, version))
        if self._deterministic:
            self._take_next()
            self._fill()
        return max((s.stall_s for s in statuses), default=0.0)

    async def engines_changed(self) -> None:
        """An engine has joined or left: the gate may open, and the coordinator is told."""
        if self.manifest is not None:
            await self._tell_versions(self.manifest)
        await self._notify()

    def _published(self, manifest: WeightManifest) -> None:
        self.journal.append(ev.Weights(manifest.version, {entry.name: entry.checksum for entry in manifest.tensors}))
        self.decide(ev.Published(manifest.version))
        self.manifest = manifest
        self.has_version.set()

    async def _tell_versions(self, manifest: WeightManifest) -> None:
        if self.on_versions is not None:
            await self.on_versions(manifest, dict(self.scheduler.engines))

    async def _refresh_reference(self, manifest: WeightManifest) -> None:
        interval = self.settings.ref_update_interval
        if not interval or manifest.version % interval:
            return
        if self.roles.reference is not None:
            await self.roles.reference.load_version(manifest)
        elif self.settings.actor_scores_reference:
            await self.roles.actor.refresh_reference()
        else:
            return
        self._reference_version = manifest.version

    async def _usable(self, statuses: tuple[EngineStatus, ...]) -> list[EngineStatus]:
        """Engines that took the version; one that did not gets no new work from now on."""
        good = [status for status in statuses if status.ok]
        for status in statuses:
            if not status.ok and status.engine in self.scheduler.engines:
                self.decide(ev.EngineLeft(status.engine, status.error or "weight install failed"))
        if not good and self.settings.engines_return:
            if self.on_no_engine is not None:
                await self.on_no_engine([status.engine for status in statuses])
        elif not good:
            errors = "; ".join(f"{s.engine}: {s.error}" for s in statuses)
            if not statuses:
                raise EngineLost("no engine is left")
            raise WeightSyncError(f"no engine took version {statuses[0].version}: {errors}")
        return good

    # ------------------------------------------------------------------ evaluation, checkpoints

    async def _evaluate_if_due(self, rollout_id: int) -> None:
        if not self.settings.eval_interval or self._stopping:
            return
        if self._is_due(rollout_id, self.settings.eval_interval) or self._is_last(rollout_id):
            if self._eval is not None:
                await self._eval
            await self._start_eval(rollout_id, self.scheduler.published)

    async def _start_eval(self, rollout_id: int, version: int) -> None:
        """Evaluate beside training; roles that share cards take turns, so there it is awaited."""

        async def evaluate() -> None:
            report: EvalReport = await self.roles.rollout.evaluate(rollout_id + 1, version)
            self.metrics.evaluated(report)

        self._eval = asyncio.create_task(evaluate(), name=f"controller.eval-{rollout_id}")
        if self.settings.mode == "colocate":
            await self._eval

    async def _save_if_due(self, rollout_id: int) -> None:
        interval, last = self.settings.save_interval, self._is_last(rollout_id)
        if self.settings.save_dir is not None and (last or (interval and self._is_due(rollout_id, interval))):
            await self.save(rollout_id)
        if self.settings.save_hf and (last or (interval and self._is_due(rollout_id, interval))):
            await self.roles.actor.export_hf(self.settings.save_hf.replace("{rollout_id}", str(rollout_id)))

    async def save_at_exit(self) -> None:
        """After a failure or a signal: a checkpoint of the last rollout that is whole in the trainer's weights."""
        if self.settings.save_dir is None:
            return
        settled = await self.roles.actor.settle()
        if settled.contained is None:
            logger.warning("no checkpoint at the end: stopped inside the training of %d", self.scheduler.stepped)
            return
        if (why := await self.trainers.apart(settled)) is not None:
            logger.warning("no checkpoint at the end: %s", why)
            return
        interval = self.settings.save_interval
        if self.scheduler.settings.deterministic and (not interval or settled.contained % interval):
            logger.info("no checkpoint at the end: a deterministic run is saved where nothing is being generated")
            return
        if settled.contained == self.scheduler.stepped + 1:  # its report did not arrive any more
            self._step(self.scheduler.stepped)
            self.metrics.num_steps = settled.num_steps
        if self._last_saved >= settled.contained - 1:
            return
        if settled.asleep:
            await self._wake_actor()
        await self.save(settled.contained - 1)

    async def _wake_actor(self) -> None:
        """Cards are shared: the engines give their memory back first, if they still can."""
        try:
            await self.roles.rollout.offload()
        except RelaxError as error:  # told in the log: engines that are gone hold no memory
            logger.warning("engines were not put to sleep before the last checkpoint: %s", error)
        await self.roles.actor.onload()

    async def save(self, rollout_id: int) -> None:
        """Write a checkpoint that contains rollouts 0 .. rollout_id."""
        assert self.settings.save_dir is not None
        started = self.clock.now()
        finished = self._finished_groups()
        known = {stored.order.group for stored in finished}
        unfinished = (self._orders[number] for number in sorted(self._orders) if number not in known)
        state = RunState(
            rollout_id=rollout_id,
            next_group=self.scheduler.next_group,
            prompts_drawn=self.order.drawn,
            open_groups=(*unfinished, *self.order.waiting),
            dataset_digest=self.dataset_digest,
            digest=self.digest,
            optimizer_steps=self.metrics.num_steps,
            draw_again=self.order.postponed,
            finished_groups=finished,
            reference_version=self._reference_version,
            reference=self.settings.reference_identity,
        )
        positions = {"driver": self.journal.next_seq, "rollout": await self._sync_rollout(finished)}
        path = await write_checkpoint(self.settings.save_dir, replace(state, journal=positions), self._save_roles)
        self.decide(ev.Checkpointed(rollout_id, str(path)))
        self._last_saved = rollout_id
        self.metrics.saved(self.clock.now() - started)
        logger.info("checkpoint written rollout=%d path=%s", rollout_id, path)

    async def _save_roles(self, folder: str) -> None:
        """The roles that hold what training goes on from: the actor, and whoever holds a refreshed reference."""
        reference = str(Path(folder).with_name(REFERENCE)) if self._reference_version else None
        await self.roles.actor.save(folder, reference if self.roles.reference is None else None)
        if reference is not None and self.roles.reference is not None:
            await self.roles.reference.save(reference)
        await self.trainers.save_critic(str(critic_target(self.settings.critic_save, folder)))

    async def _sync_rollout(self, finished: Sequence[StoredGroup]) -> int:
        """Trace and journal of what the checkpoint refers to are on disk; returns the end of that journal."""
        files = tuple(stored.accepted.entry.file for stored in finished)
        try:
            return await self.roles.rollout.sync(files)
        except InfrastructureError as error:  # told in the log: what the dead process had written is still there
            logger.warning("the rollout role is gone, its files are read: %s", error)
            folder = RunFolder(self.settings.save_dir)  # type: ignore[arg-type]
            sync_files(folder.trace, files)
            return end_of_journal(folder.journal / "rollout.jsonl")

    def _finished_groups(self) -> tuple[StoredGroup, ...]:
        """Groups in the trace that no trained rollout contains: bound ones first, then in completion order."""
        bound = [number for rollout_id in sorted(self.scheduler.bound) for number in self.scheduler.bound[rollout_id]]
        return tuple(
            StoredGroup(self._orders[number], self.scheduler.open[number].version, self._finished[number])
            for number in (*bound, *self.scheduler.accepted)
            if number in self._finished
        )

    def _is_due(self, rollout_id: int, interval: int) -> bool:
        return (rollout_id + 1) % interval == 0

    def _is_last(self, rollout_id: int) -> bool:
        return self._stopping or rollout_id + 1 >= self.scheduler.settings.num_rollouts

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def chain_digest(digest: str, groups: Sequence[tuple[int, str]]) -> str:
    """The digest of everything trained so far: one hash over the previous one and this rollout's (group, digest)."""
    text = digest + "".join(f"|{group}:{own}" for group, own in groups)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def trained_event(report: TrainReport, divisors: Sequence[float], kind: type[ev.Trained] = ev.Trained) -> ev.Trained:
    """A training report as the journal keeps it."""
    uids = sorted({uid for by_uid in report.checksums.values() for uid in by_uid})
    return kind(
        report.rollout_id,
        tuple(f"{group}.{place}" for group, place in uids),
        {
            column: "".join(by_uid.get(uid, ev.NO_CHECKSUM) for uid in uids)
            for column, by_uid in sorted(report.checksums.items())
        },
        tuple({"divisor": d, **step} for d, step in zip(divisors, report.steps, strict=False)),
    )


def first_error(group: BaseExceptionGroup) -> BaseException:
    """The first leaf of a task group's errors: the one that made the others be cancelled."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
