# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One whole run on virtual time: the product's roles, bus, journal, trace and loop around the tiny twins.

Every latency and every fault is a function of (seed, what, who), never of call order, so a seed replays exactly.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.simulation.plan import Plan
from benchmarks.simulation.twins import VOCABULARY, MemoryDataset, RecordingPublisher, RecordingTrain, Scorer, Slow
from relax.algorithms.options import AlgorithmOptions, build_loss
from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.tiny.engine import EchoBehaviour, EchoEngine, EchoRouter
from relax.backends.tiny.train import TinyTrain
from relax.backends.tiny.weights import WeightStore
from relax.components.actor import Actor
from relax.components.actor_fwd import ForwardRole
from relax.components.advantages import Advantages
from relax.components.engines import EngineFleet
from relax.components.messages import PRODUCERS, Roles
from relax.components.rollout import Rollout, RolloutSettings
from relax.components.training_data import BatchSettings
from relax.core.prompt_order import PromptOrder
from relax.core.step_metrics import StepMetrics
from relax.core.training_loop import LoopSettings, TrainingLoop
from relax.data.chat import PreparedPrompt
from relax.data.datasets import RawRow
from relax.distributed.bus.local import LocalBus
from relax.distributed.trace import TraceWriter
from relax.engine.rollout.attempts import GenerationOptions
from relax.engine.rollout.evaluate import EvalTask, evaluate
from relax.engine.rollout.generate import generate
from relax.engine.rollout.groups import GroupGenerator
from relax.engine.rollout.hooks import load_hook, make_hook
from relax.engine.rollout.sampling import SamplingOptions
from relax.schedule import events as ev
from relax.schedule.clock import VirtualClock
from relax.schedule.journal import MemoryJournal
from relax.schedule.scheduler import GateSettings, Scheduler
from relax.utils.http_utils import register_local, unregister_local
from relax.utils.metrics import MemorySink
from relax.utils.types import Sample

HOST, PORT = "echo.invalid", 80
CALL_TIMEOUT_S, INSTALL_TIMEOUT_S = 400.0, 50.0
FAULTS = ("filter", "user-fails", "reward-fails", "install")  # what happens; all other noise says when
ARGS = SimpleNamespace(
    sglang_router_ip=HOST,
    sglang_router_port=PORT,
    hf_checkpoint="none",
    rollout_max_context_len=None,
    rollout_backend="native",
    engine_max_total_tokens=65536,
)


@dataclass
class World:
    """Builds and runs one schedule. After `run`, its fields are the evidence that the checker reads."""

    plan: Plan
    folder: Path
    scheduler_class: type[Scheduler] = Scheduler
    engine_class: type[EchoEngine] = EchoEngine
    bus_class: type[LocalBus] = LocalBus
    loop_class: type[TrainingLoop] = TrainingLoop
    order_class: type[PromptOrder] = PromptOrder
    fleet_class: type[EngineFleet] = EngineFleet
    rollout_class: type[Rollout] = Rollout
    handle: Callable[[World, Any], Any] = lambda world, role: role  # what the loop gets for a role
    start_table: np.ndarray | None = None
    engines_return: bool = False  # dead engines are started again
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    sink: MemorySink = field(default_factory=MemorySink)
    evaluations: list[tuple[int, list[Sample]]] = field(default_factory=list)
    calls: int = 0
    calls_made: int = 0  # of roles, by the loop
    stands_on: tuple[int, int] | None = None  # the checkpoint that was read: its rollout, its place in the journal
    cut_off: bool = False  # by a planned crash
    notes: list[str] = field(default_factory=list)  # broken promises that leave no trace elsewhere
    stop_after: int | None = None  # the run is cut off after this rollout, as a crash does
    dataset: MemoryDataset = field(default_factory=MemoryDataset)

    def noise(self, *key: object) -> float:
        """A number in [0, 1) that depends on the key and its seed alone."""
        plan = self.plan
        seed = plan.seed if plan.timing is None or key[0] in FAULTS else plan.timing
        text = ":".join(map(str, (seed, *key)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little") / 2.0**48

    # ------------------------------------------------------------------ parts

    def behaviour(self, number: int) -> EchoBehaviour:
        plan = self.plan

        def token_s(rid: str, place: int) -> float:
            if self.noise("hang", rid) < plan.hanging_requests:
                return 1e6
            slow = 30.0 if self.noise("slow", rid) < plan.slow_requests else plan.pace
            return slow * (0.1 + self.noise("token", rid, place))

        def installs_badly(count: int) -> float:
            """Below 1: the call fails at once; below 2: it hangs; else it works."""
            first_is_fine = number == 0 or count == 1
            share = plan.install_failures
            kind = self.noise("install", number, count)
            return 3.0 if first_is_fine or kind >= share else 0.5 if kind < share / 2 else 1.5

        def call_s(verb: str, count: int) -> float:
            if verb == "weights_from_disk" and 1.0 < installs_badly(count) < 2.0:
                return 1e6
            return 0.5 * self.noise(verb, number, count) if verb != "generate" else 0.0

        def fault(verb: str, count: int) -> Exception | None:
            return ConnectionError("planted") if verb == "weights_from_disk" and installs_badly(count) < 1.0 else None

        return EchoBehaviour(token_s=token_s, call_s=call_s, fault=fault)

    def connect(self, name: str, url: str) -> EchoEngine:
        raise NotImplementedError("engines of this world do not come and go")

    async def prepare(self, row: RawRow) -> PreparedPrompt:
        self.calls += 1
        await asyncio.sleep(self.noise("prepare", self.calls))
        number = row.values["number"]
        ids = [1 + number, 2, 1 + number]
        return PreparedPrompt(f"row {number}", None, ids, list(ids), [], [], None, {}, None)

    def hook(self) -> Any:
        plan = self.plan
        if not plan.user_failures and not plan.fan_out:
            return load_hook()

        async def flaky(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Any:
            who = (sample.group_index, sample.index, sample.attempt)
            await asyncio.sleep(self.noise("user", *who))
            if self.noise("user-fails", *who) < plan.user_failures:
                raise RuntimeError("planted")
            if not plan.fan_out or sample.index:
                return await generate(args, sample, sampling_params)
            return [await generate(args, replace(sample), sampling_params) for _ in range(2)]

        return make_hook(flaky, "benchmarks.simulation.flaky")

    def dynamic_filter(self, args: Any, samples: list[Sample]) -> Any:
        keep = self.noise("filter", samples[0].group_index) >= self.plan.filtered
        return SimpleNamespace(keep=keep, reason=None if keep else "filter")

    # ------------------------------------------------------------------ the run

    def build(self) -> None:
        plan, clock = self.plan, VirtualClock()
        rng = np.random.default_rng(plan.seed)
        table = rng.normal(size=(VOCABULARY, VOCABULARY)) if self.start_table is None else self.start_table
        store = WeightStore()
        self.new_engine = lambda number, url: self.engine_class(
            np.zeros_like(table), clock=clock, store=store, url=url, behaviour=self.behaviour(number)
        )
        engines = [self.new_engine(n, f"echo://{n}") for n in range(plan.num_engines)]
        self.router = EchoRouter(engines)
        named = {f"engine-{n}": engine for n, engine in enumerate(engines)}
        fleet = self.fleet_class(
            named,
            clock=clock,
            timeout_s=INSTALL_TIMEOUT_S,
            pause_mode=plan.pause_mode,
            workers=self.router,
            connect=self.connect,
        )
        tables = ("advantages", *({"reference": ("ref",), "actor_fwd": ("actor_fwd",)}.get(plan.forward or "", ())))
        self.bus = self.bus_class({t: r for t, r in PRODUCERS.items() if t in ("rollout", "media", *tables)})
        algorithm = AlgorithmOptions(
            use_kl_loss=plan.forward == "reference",
            kl_loss_coef=0.1 if plan.forward == "reference" else 0.0,
            old_log_probs="old" if plan.forward == "actor_fwd" else "rollout",
        )
        self.rollout = self._rollout(fleet, clock)
        self.backend = RecordingTrain(table, store=store)
        self.publisher = RecordingPublisher(store)
        groups_per_step = -(-plan.batch // plan.steps_per_rollout)
        batches = BatchSettings(plan.group_size, groups_per_step * plan.group_size, max_tokens=24)
        model = ModelSpec(Path("unused"))
        self.actor = Actor(
            backend=self.backend,
            loss=build_loss(algorithm),
            model=model,
            optimizer=OptimizerSpec(lr=0.5),
            settings=batches,
            bus=self.bus,
            publisher=self.publisher,
            clock=clock,
            deadline_s=100.0,
        )
        self.advantages = Advantages(
            bus=self.bus,
            options=algorithm,
            group_size=plan.group_size,
            global_batch_size=batches.global_batch_size,
            deadline_s=100.0,
        )
        self.forward = None
        if plan.forward is not None:
            table_name, column = {"reference": ("ref", "ref_logprobs"), "actor_fwd": ("actor_fwd", "old_logprobs")}[
                plan.forward
            ]
            self.forward = ForwardRole(
                name=plan.forward,
                table=table_name,
                column=column,
                backend=TinyTrain(table, store=store),
                model=model,
                settings=batches,
                bus=self.bus,
                clock=clock,
                deadline_s=100.0,
            )
        self.loop = self._loop(tables, clock)

    def _rollout(self, fleet: EngineFleet, clock: VirtualClock) -> Rollout:
        plan = self.plan
        hook, scorer = self.hook(), Scorer(self.noise, plan.reward_failures)
        sampling = SamplingOptions(max_response_len=6).params()
        options = GenerationOptions(
            seed=plan.seed,
            max_response_len=12,
            max_running_samples=8,
            call_timeout_s=CALL_TIMEOUT_S,
            partial_rollout=plan.partial_rollout,
            protected_after=plan.protected_after,
            mask_off_policy=plan.mask_off_policy,
        )
        generator = GroupGenerator(
            args=ARGS,
            hook=hook,
            sampling_params=sampling,
            options=options,
            clock=clock,
            scorer=scorer,
            dynamic_filter=self.dynamic_filter if plan.filtered else None,
            engines=fleet,
        )
        rows = [Sample(row=n, tokens=[n + 1, 2], rollout_tokens=[n + 1, 2]) for n in range(3)]

        async def run_evaluation(rollout_id: int) -> tuple[dict[str, float], list[Sample]]:
            tasks = [EvalTask("held_out", rows, sampling, 2)]
            (result,) = await evaluate(
                tasks,
                args=ARGS,
                hook=load_hook(),
                options=options,
                scorer=scorer,
                clock=clock,
                wait_open=generator.wait_open,
            )
            self.evaluations.append((rollout_id, result.samples))
            return {"eval/held_out/reward/mean": result.mean_reward}, result.samples

        return self.rollout_class(
            dataset=self.dataset,
            prepare=self.prepare,
            generator=generator,
            engines=fleet,
            bus=self.bus,
            trace=TraceWriter(self.folder / "trace"),
            journal=self.journal,
            clock=clock,
            settings=RolloutSettings(
                plan.group_size,
                interrupt_for_weights=plan.partial_rollout,
                generate_timeout_s=CALL_TIMEOUT_S,
                in_order=plan.deterministic,
            ),
            evaluate=run_evaluation,
        )

    def _loop(self, tables: tuple[str, ...], clock: VirtualClock) -> TrainingLoop:
        plan = self.plan
        scheduler = self.scheduler_class(
            GateSettings(
                rollout_batch_size=plan.batch,
                max_staleness=plan.staleness,
                num_rollouts=plan.rollouts,
                surplus=plan.surplus,
                stale_policy=plan.stale_policy,
                deterministic=plan.deterministic,
                parts=plan.parts * plan.steps_per_rollout if plan.parts > 1 else 1,
                arrival_order=plan.arrival_order,
            )
        )
        forward = Slow(self.forward, lambda call: self._step_noise("forward", call)) if self.forward else None
        handle = partial(self.handle, self)
        roles = Roles(
            rollout=handle(self.rollout),
            actor=handle(Slow(self.actor, lambda call: self._step_noise("actor", call))),
            advantages=handle(Slow(self.advantages, lambda call: self._step_noise("advantages", call))),
            reference=handle(forward) if plan.forward == "reference" else None,
            actor_fwd=handle(forward) if plan.forward == "actor_fwd" else None,
        )
        return self.loop_class(
            roles=roles,
            scheduler=scheduler,
            journal=self.journal,
            order=self.order_class(len(self.dataset), seed=plan.seed, shuffle=True),
            settings=LoopSettings(
                mode=plan.mode,
                tables=tables,
                update_weights_interval=plan.interval,
                eval_interval=plan.eval_interval,
                save_dir=self.folder if plan.save_interval else None,
                save_interval=plan.save_interval,
                engines_return=self.engines_return,
                parts_per_step=plan.parts,
            ),
            clock=clock,
            metrics=StepMetrics([self.sink], clock),
            dataset_digest=self.dataset.digest,
            on_step=self._on_step,
        )

    def _step_noise(self, role: str, call: str) -> float:
        return 8.0 * self.noise(role, call, self.loop.scheduler.stepped)

    async def _on_step(self, rollout_id: int) -> None:
        if rollout_id == self.stop_after:
            raise Crash

    async def start(self) -> None:
        self.build()
        register_local(f"http://{HOST}:{PORT}", self.router)
        await self.rollout.start()
        await self.actor.start()
        if self.forward is not None:
            await self.forward.start()
        plan = self.plan
        self.loop.decide(ev.RunStarted("sim", plan.mode, plan.batch, plan.staleness, plan.rollouts))

    async def run(self, before: Callable[[World], Any] | None = None) -> World:
        """The whole run; `before` is awaited between the start of the roles and the loop (a resume)."""
        await self.start()
        try:
            if before is not None:
                await before(self)
            await self.loop.run()
        except Crash:
            self.cut_off = True
        finally:
            await self.rollout.stop()
            await self.actor.stop()
            unregister_local(f"http://{HOST}:{PORT}")
        return self


class Crash(Exception):
    """The planned end of a run that is to be resumed."""
