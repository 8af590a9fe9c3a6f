# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One run from configuration to exit code: folder, roles, loop, shutdown on every path."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from relax.components.messages import Roles
from relax.components.sft_messages import SftRoles
from relax.config.run import RunConfig
from relax.core.build import algorithm_options, tables
from relax.core.checkpoint import weights_identity
from relax.core.critic_files import critic_checkpoint
from relax.core.critical_path import critical_path
from relax.core.engine_keeper import EngineKeeper, EnginePool, KeeperSettings
from relax.core.metrics_link import MetricsDoor, MetricsLink
from relax.core.prompt_order import PromptOrder
from relax.core.resume import find_resumption, resume, set_results_aside, start_over
from relax.core.run_folder import (
    RunFolder,
    add_facts,
    choose_folder,
    exactness,
    new_run_id,
    result_folder,
    write_description,
)
from relax.core.sft_loop import SftLoop
from relax.core.sft_run import make_sft_loop
from relax.core.sinks import make_sinks
from relax.core.step_metrics import StepMetrics
from relax.core.training_loop import LoopSettings, TrainingLoop
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.schedule import events as ev
from relax.schedule.clock import Clock, RealClock
from relax.schedule.journal import FLUSH_INTERVAL_S, FileJournal, Journal
from relax.schedule.scheduler import GateSettings, Scheduler
from relax.utils.collect_stacks import collect, report
from relax.utils.console import Progress
from relax.utils.errors import (
    BusTimeout,
    ConfigError,
    DataError,
    InfrastructureError,
    InternalError,
    RelaxError,
    Stuck,
    UserCodeError,
)
from relax.utils.http_utils import close_session
from relax.utils.lock import RunLock
from relax.utils.owned_folder import owned_folder, remove_abandoned
from relax.utils.stacks import answering

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAITED_IN_VAIN = (Stuck, BusTimeout)  # what the processes were doing explains these
# What ends a run and leaves the weights as good as they were: a signal, the machine, the user's data or code.
SAVES_AT_EXIT = (asyncio.CancelledError, InfrastructureError, DataError, UserCodeError, OSError)


class Deployment(Protocol):
    """Where the roles live: in this process, or as workers of a Ray cluster."""

    @property
    def engines(self) -> EnginePool | None:
        """Engines that may come and go; None where they cannot."""
        ...

    @property
    def metrics_door(self) -> MetricsDoor | None:
        """The HTTP side of the metrics service; None where it is off."""
        ...

    async def start(self) -> Roles | SftRoles: ...

    async def published(self, manifest: WeightManifest, engines: Mapping[str, int]) -> None:
        """A version was published, and these engines hold those versions."""
        ...

    async def watch(self) -> None:
        """Raise when a process that the run needs has died."""
        ...

    async def stop(self) -> None: ...


class Stopped(Exception):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def run_training(config: RunConfig) -> int:
    """Run and return the process's exit code. Errors keep their own traceback in the log and on stderr."""
    run_id = new_run_id()
    folder = choose_folder(config, run_id)
    with RunLock(folder.root), logging_to(folder.log("controller")), answering(folder.stacks, "controller"):
        write_description(folder, config, run_id)
        print(f"run folder: {folder.root}", flush=True)
        try:
            asyncio.run(_run_until_signal(config, folder, run_id))
        except Stopped as stop:
            print(f"{stop}; the last checkpoint stays", file=sys.stderr)
            return stop.exit_code
        except Exception as error:  # told on stderr in short, in the log with its traceback
            logger.exception("run failed")
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            print(f"the traceback is in {folder.log('controller')}; other logs are beside it", file=sys.stderr)
            return exit_code_of(error)
        return 0


def exit_code_of(error: Exception) -> int:
    """Errors that nobody raised on purpose: the machine's (disk, memory, sockets) or ours."""
    if isinstance(error, RelaxError):
        return error.exit_code
    return (InfrastructureError if isinstance(error, (OSError, MemoryError)) else InternalError).exit_code


async def _run_until_signal(config: RunConfig, folder: RunFolder, run_id: str) -> None:
    """Run as a task that a signal cancels, so that every path goes through the same shutdown."""
    task = asyncio.create_task(run_once(config, folder, run_id))
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if not received:  # a second signal must not cut the shutdown short
            received.append(number)
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if received:
            raise Stopped(received[0]) from None
        raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def run_once(config: RunConfig, folder: RunFolder, run_id: str) -> None:
    """Deploy the roles, train, and take everything down again, whatever happens in between."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else folder.root
    for path in remove_abandoned(parent, "relax-*"):
        logger.info("removed what a killed run has left path=%s", path)
    with owned_folder(parent / f"relax-{run_id}") as shared_dir:
        run = Run(
            config, folder, run_id, deploy(config, folder.root, shared_dir), FileJournal(folder.journal, "driver")
        )
        failed: BaseException | None = None
        try:
            await run.train()
        except BaseException as error:  # raised below, once everything is down
            failed = error
        await run.end("finished" if failed is None else _reason_of(failed), failed)


def _reason_of(error: BaseException) -> str:
    return "stopped" if isinstance(error, asyncio.CancelledError) else "failed"


@dataclass
class Run:
    """One run's objects between deployment and shutdown."""

    config: RunConfig
    folder: RunFolder
    run_id: str
    deployment: Deployment
    journal: FileJournal
    clock: Clock = field(default_factory=RealClock)
    loop: TrainingLoop | SftLoop | None = None
    metrics_link: MetricsLink | None = None

    async def train(self) -> None:
        roles = await self.deployment.start()
        if roles.facts.get("http"):
            print(f"http: {roles.facts['http']}", flush=True)
        if isinstance(roles, SftRoles):
            add_facts(self.folder, device=roles.facts["actor"].device)
            self.loop = await make_sft_loop(self.config, self.folder, roles, self.journal, self.clock, self.run_id)
            keeping = []
        else:
            await self._tell_exactness(roles)
            self.loop = await make_loop(self.config, self.folder, roles, self.journal, self.clock, self.run_id)
            pool = self.deployment.engines
            keeping = [EngineKeeper(self.loop, pool, keeper_settings(self.config)).run()] if pool is not None else []
        self.loop.on_versions = self.deployment.published
        parts = [self.deployment.watch(), *keeping, _flush(self.journal, self.clock), self.loop.run()]
        if (door := self.deployment.metrics_door) is not None:
            self.metrics_link = MetricsLink(self.loop.metrics.collector, door, self.clock)
            parts.append(self.metrics_link.run())
        await _first_end(*parts)

    async def _tell_exactness(self, roles: Roles) -> None:
        exact, reason = exactness(self.config, roles.facts["actor"], await roles.rollout.engines())
        add_facts(self.folder, exact=exact, exact_reason=reason, device=roles.facts["actor"].device)
        logger.info("exactness exact=%s reason=%s", exact, reason)
        print(f"exact: {str(exact).lower()} ({reason})", flush=True)
        check_determinism(self.config, exact, reason)

    async def end(self, reason: str, failed: BaseException | None) -> None:
        """Save what can be saved, take everything down, raise `failed`, or else the first error of the shutdown."""
        if isinstance(failed, WAITED_IN_VAIN):
            await self._keep_stacks()
        if isinstance(failed, SAVES_AT_EXIT):
            await self._save_at_exit()
        if failed is None and self.loop is not None and self.loop.stop_requested:
            reason = "stopped_by_service"
        for step in (lambda: self._end_journal(reason), self._end_metrics, self.deployment.stop, close_session):
            try:
                await step()
            except Exception as error:  # raised below unless something came before; what follows must stop too
                logger.exception("shutdown step failed")
                failed = failed or error
        if failed is not None:
            raise failed

    async def _save_at_exit(self) -> None:
        """A checkpoint of the last finished rollout, if that works in time; why not is told, and `failed` stays."""
        limit = self.config.checkpoint.exit_save_timeout
        if self.loop is None or not limit:
            return
        try:
            async with asyncio.timeout(limit):
                await self.loop.save_at_exit()
        except TimeoutError:
            logger.error("no checkpoint at the end: not written within --exit-save-timeout %g s", limit)
            await self._keep_stacks()
        except Exception:  # the log is told; the error that ends the run is another one, and what follows must stop
            logger.exception("no checkpoint at the end")

    async def _keep_stacks(self) -> None:
        """Write what every process is doing into the run folder, and say where."""
        path = self.folder.stacks / "when-stuck.txt"
        try:
            path.write_text(report(await asyncio.to_thread(collect, self.folder.stacks)), encoding="utf-8")
        except OSError:  # the log is told; the error that ends the run is another one
            logger.exception("stacks were not kept")
        else:
            logger.error("stacks of all processes are in %s", path)
            print(f"what every process was doing is in {path}", file=sys.stderr)

    async def _end_journal(self, reason: str) -> None:
        self.journal.append(ev.Ended(reason))
        self.journal.close()

    async def _end_metrics(self) -> None:
        if self.loop is not None:
            line = critical_path(
                self.loop.metrics.steps,
                shared=self.config.mode == "colocate",
                supervised=self.config.is_supervised,
            )
            if line is not None:
                print(line, flush=True)
            if self.metrics_link is not None:
                await self.metrics_link.finish()
            await asyncio.to_thread(self.loop.metrics.close)


async def _first_end(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until one has ended, which is raised or returned; where several have, an earlier one explains more."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()


def deploy(config: RunConfig, run_dir: Path, shared_dir: Path) -> Deployment:
    if config.cluster.inline:
        from relax.core.inline import InlineDeployment
        from relax.core.sft_inline import SftInlineDeployment

        return (SftInlineDeployment if config.is_supervised else InlineDeployment)(config, run_dir, shared_dir)
    from relax.core.deploy import RayDeployment
    from relax.core.sft_deploy import SftRayDeployment

    return (SftRayDeployment if config.is_supervised else RayDeployment)(config, run_dir, shared_dir)


async def make_loop(
    config: RunConfig, folder: RunFolder, roles: Roles, journal: Journal, clock: Clock, run_id: str
) -> TrainingLoop:
    """The loop with its scheduler, either fresh or at the checkpoint that `--load` names."""
    rows, digest = await roles.rollout.dataset()
    num_rollouts = config.num_rollouts(rows)
    resumption = find_resumption(config.checkpoint.load, config.rollout.start_rollout_id, digest)
    if resumption is None or resumption.run.root == folder.root:
        first = 0 if resumption is None else resumption.first
        set_results_aside(result_folder(config, folder), folder.metrics / "metrics.jsonl", first)
    scheduler = Scheduler(gate_settings(config, num_rollouts))
    order = PromptOrder(rows, seed=config.rollout.rollout_seed, shuffle=config.rollout.rollout_shuffle)
    progress = Progress(num_rollouts, now=clock.now)
    metrics = StepMetrics(
        make_sinks(config, folder, None if resumption is None else resumption.first),
        clock,
        on_step=progress.step,
        on_eval=lambda version, values: progress.message(eval_text(version, values)),
    )
    loop = TrainingLoop(
        roles, scheduler, journal, order, loop_settings(config, folder), clock, metrics, dataset_digest=digest
    )
    loop.decide(
        ev.RunStarted(
            run_id,
            config.mode,
            scheduler.settings.rollout_batch_size,
            scheduler.settings.max_staleness,
            num_rollouts,
        )
    )
    if resumption is None:
        await start_over(loop)
    else:
        critic = critic_checkpoint(config, resumption.folder) if config.uses_critic else None
        await resume(loop, resumption, critic)
    return loop


def gate_settings(config: RunConfig, num_rollouts: int) -> GateSettings:
    return GateSettings(
        rollout_batch_size=config.rollout.rollout_batch_size,  # type: ignore[arg-type]
        max_staleness=config.cluster.max_staleness,
        num_rollouts=num_rollouts,
        surplus=config.over_sampling_surplus,
        stale_policy=config.cluster.stale_token_policy,
        deterministic=config.cluster.deterministic,
        parts=config.parts_per_rollout,
        arrival_order=config.cluster.stream_order == "arrival",
    )


def check_determinism(config: RunConfig, exact: bool, reason: str) -> None:
    """Only where a token's bits don't depend on its neighbours in a batch can runs repeat each other."""
    if config.cluster.deterministic and not exact:
        raise ConfigError(
            f"--deterministic: tokens would depend on which requests share a batch, because this run is not exact "
            f"({reason}). Use --rollout-backend native in fp32 on the CPU, or leave --deterministic out"
        )


def loop_settings(config: RunConfig, folder: RunFolder) -> LoopSettings:
    algorithm_options(config)  # refuses a combination that the loss would refuse, before anything is loaded
    return LoopSettings(
        mode=config.mode,
        tables=tables(config),
        update_weights_interval=config.cluster.update_weights_interval,
        ref_update_interval=config.algorithm.ref_update_interval,
        actor_scores_reference=config.uses_kl and "reference" not in config.resource,
        reference_first=config.algorithm.kl_coef > 0 and "reference" not in config.resource,
        actor_scores_old=config.old_log_probs_role == "actor",
        parts_per_step=config.cluster.num_iters_per_train_update,
        eval_interval=config.eval.eval_interval,
        eval_before_train=not config.eval.skip_eval_before_train,
        save_dir=folder.root if config.checkpoint.save else None,
        save_interval=config.checkpoint.save_interval,
        save_hf=config.checkpoint.save_hf,
        critic_only_steps=config.critic_only_steps,
        critic_save=config.critic.critic_save,
        asks_student=config.asks_student,
        reference_identity=weights_identity(Path(config.initial_model)) if config.uses_kl else "",
        engines_return=config.cluster.use_fault_tolerance,
    )


def keeper_settings(config: RunConfig) -> KeeperSettings:
    cluster = config.cluster
    return KeeperSettings(
        relaunch=cluster.use_fault_tolerance,
        launch_timeout_s=cluster.scale_out_timeout,
        drain_timeout_s=cluster.scale_in_drain_timeout,
        shutdown_timeout_s=cluster.scale_in_shutdown_timeout,
    )


def eval_text(version: int, values: dict[str, float]) -> str:
    shown = [f"{name.removeprefix('eval/')} {value:.3f}" for name, value in values.items() if name.endswith("/mean")]
    return f"evaluation of version {version}: {', '.join(shown)}"


async def _flush(journal: Journal, clock: Clock) -> None:
    while True:
        await clock.sleep(FLUSH_INTERVAL_S)
        journal.flush()


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send this process's log to a file of the run folder, warnings to stderr as well."""
    root = logging.getLogger()
    path.parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(path), logging.StreamHandler(sys.stderr)]
    handlers[1].setLevel(logging.WARNING)
    handlers[1].addFilter(lambda record: record.exc_info is None)  # tracebacks are for the file
    form = logging.Formatter("%(asctime)s %(levelname).1s %(name)s %(message)s")
    before = root.level
    for handler in handlers:
        handler.setFormatter(form)
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


__all__ = ["Deployment", "Stopped", "run_once", "run_training"]
