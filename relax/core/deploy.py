# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The roles on Ray: workers on cards, engines as processes, the router, the bus, and Serve doors in front.

    driver                     bus owner, router process, this object
    worker rollout             rollout and advantages roles (CPU)
    worker actor-{rank}        one training rank; critic-{rank} likewise
    worker reference, actor_fwd  one forward rank each
    worker engine-{i}          owns one engine process
    serve: one door a role, and `control`

What can start at the same time does: a worker imports torch while TransferQueue and the engines come up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from relax.algorithms.distillation_options import PER_POSITION
from relax.components.messages import Roles
from relax.config.resources import check_fits
from relax.config.run import RunConfig
from relax.core.build import Wiring
from relax.core.metrics_link import MetricsDoor
from relax.core.placement import Placement, check_slots, on_node, spreads
from relax.core.ray_engines import RayEngines
from relax.core.ray_served import RayServed
from relax.core.run_folder import RunFolder
from relax.core.serve_logs import ServeLogs
from relax.core.training_loop import first_error
from relax.distributed.bus.transfer_queue import ENVIRONMENT, TransferQueueOwner
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.distributed.ray.cluster import Cluster, connect, joins_cluster
from relax.distributed.ray.handles import RemoteGroup, RemoteRole, translated
from relax.distributed.ray.worker import LOOPBACK, Worker
from relax.engine.router.process import RouterProcess
from relax.schedule.clock import RealClock
from relax.utils.cores import VARIABLE as CORE_SHARE
from relax.utils.errors import ConfigError, EngineLost, InternalError
from relax.utils.processes import free_ports
from relax.utils.stacks import FOLDER as STACKS

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROCESS_ENV = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONUNBUFFERED": "1",
    **ENVIRONMENT,
}
LAUNCH_VARIABLES = ("RELAX_JOB", "RELAX_CHECKOUT")  # by which an entry point knows the processes of its jobs
TRAIN_PRELOAD = ("torch", "transfer_queue", "transformers")
ROLLOUT_PRELOAD = ("torch", "transfer_queue", "transformers")
FORWARD_ROLES = ("reference", "actor_fwd")
BUILD_TEACHER = "relax.core.build_teacher:build_teacher"
BUILD_GENRM = "relax.core.build_genrm:build_genrm"
TRAINED_ROLES = ("actor", "critic")  # groups of ranks
WORKER_STOP_S = 20.0
THREAD_WAIT_S = 30.0
DOOR_TIMEOUT_S = 10.0


class RayDeployment:
    """Everything of one run that lives in other processes; `stop` takes all of it down, whatever was started."""

    def __init__(self, config: RunConfig, run_dir: Path, shared_dir: Path) -> None:
        self._config, self._folder, self._shared_dir = config, RunFolder(run_dir), shared_dir
        self._namespace = f"relax-{shared_dir.name}"
        self._cluster: Cluster | None = None
        self._placement: Placement | None = None
        self._bus: TransferQueueOwner | None = None
        self._router: RouterProcess | None = None
        self._workers: dict[str, Any] = {}
        self._spread = False  # over several nodes
        self._logs: ServeLogs | None = None
        self._hosting: set[str] = set()  # workers that were told to build a role
        self._threads: list[asyncio.Future[Any]] = []
        self.engines = RayEngines(
            config, self._folder, spawn=self._spawn_engine, stop=self._stop_worker, hosting=self._hosting
        )
        self._served = RayServed(config, self._folder, spawn=self._spawn_engine, hosting=self._hosting)
        self._control: Any = None
        self._serving = False
        self.http_address: str | None = None

    # ------------------------------------------------------------------ start

    async def start(self) -> Any:
        """Bring everything up. The first failure is raised as it is, once the other tasks have been cancelled."""
        try:
            return await self._start()
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _start(self) -> Any:
        config = self._config
        if config.cluster.serve_http and not joins_cluster():
            check_port_is_free(config.cluster.serve_host, config.cluster.serve_port)
        cluster = await self._in_thread(self._connect)
        take_signals_back()
        self._logs = ServeLogs(cluster.session)
        for name in ("controller", "router"):
            self._link_log(name)
        colocate, card = config.shares_cards, cluster.card
        if card == "GPU":
            check_fits(config.placed, colocate=colocate, available=cluster.gpus)
        elif card is not None:
            check_slots(config.placed, colocate=colocate, total=cluster.slots, free=cluster.free_slots)
        else:
            logger.info(
                "the cluster has no GPUs and no slots: cards are processes on this node, as many as are asked for"
            )
        self._spread = card is not None and spreads(
            config.placed,
            colocate=colocate,
            here=cluster.here.get(card, 0.0),
            transport=config.cluster.checkpoint_engine_backend,
        )
        self._placement = Placement(
            config.placed,
            colocate=colocate,
            card=card,
            node=None if self._spread else cluster.node,
            cards_per_engine=config.cluster.rollout_num_gpus_per_engine,
        )
        await self._placement.create()
        self._start_workers(cluster.node)
        self._bus = TransferQueueOwner(
            num_data_storage_units=config.cluster.num_data_storage_units,
            bell=None if self._spread else self._shared_dir / "bus-writes",  # no file rings on other nodes
        )
        async with asyncio.TaskGroup() as starting:
            attachment = starting.create_task(self._in_thread(self._bus.start))
            router = starting.create_task(self._start_router(cluster.host))
            engines = starting.create_task(self.engines.start_first(spread=self._spread))
            served = starting.create_task(self._served.start(spread=self._spread))
            ranks = [starting.create_task(self._rank_environment(role)) for role in self._trained]
            if config.cluster.serve_http:
                starting.create_task(self._in_thread(lambda: self._start_doors(card)))
        await asyncio.gather(*ranks)
        wiring = Wiring(
            run_dir=self._folder.root,
            shared_dir=self._shared_dir,
            **await self._routed(router.result(), engines.result()),
            bus_attachment=attachment.result(),
            engine_urls=engines.result(),
            served_urls=served.result(),
            namespace=self._namespace,
            metrics_url=f"{self.http_address}/metrics" if self.metrics_door is not None else None,
            actor_host=(await self._await(self._workers["actor-0"].ready.remote(), "actor-0"))["host"],
        )
        return await self._build_roles(wiring)

    async def _start_router(self, host: str) -> RouterProcess | None:
        """The router in front of the engines; None in a run without engines."""
        if not self._config.raises_rollout:
            return None
        self._router = RouterProcess(
            clock=RealClock(),
            log_path=self._folder.log("router"),
            host=host if self._spread else LOOPBACK,
            extra_args=self._config.external.argv("router"),
        )
        await self._router.start()
        return self._router

    async def _routed(self, router: RouterProcess | None, urls: Mapping[str, str]) -> dict[str, Any]:
        """Give the engines to the router -> its address, as the wiring has it."""
        if router is None:
            return {}
        for url in urls.values():
            await router.add_worker(url)
        return {"router_host": router.host, "router_port": router.port}

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Blocking start-up work. A cancelled caller leaves the thread running, so `stop` waits for it."""
        future = asyncio.get_running_loop().run_in_executor(None, function)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # told, or no longer of interest
        self._threads.append(future)
        return await asyncio.shield(future)

    def _connect(self) -> Cluster:
        config = self._config
        env = {**PROCESS_ENV, "PYTHONPATH": _python_path(), STACKS: str(self._folder.stacks)}
        env |= {name: os.environ[name] for name in (*LAUNCH_VARIABLES, PER_POSITION) if name in os.environ}
        self._cluster = connect(
            namespace=self._namespace,
            slots=config.needed_gpus,
            dashboard=config.cluster.ray_dashboard,
            env=env,
        )
        return self._cluster

    def _start_workers(self, node: str) -> None:
        """Create every worker's process; they import while the rest comes up."""
        config = self._config
        self._worker("rollout", ROLLOUT_PRELOAD, {"num_cpus": 0, "resources": on_node(node)})
        for role in self._trained:
            for rank in range(config.resource[role].gpus):
                env = dict(config.train.train_env_vars)
                self._worker(f"{role}-{rank}", TRAIN_PRELOAD, self._seat(role, rank), env)
        for role in FORWARD_ROLES:
            if role in config.resource:
                self._worker(role, TRAIN_PRELOAD, self._seat(role, 0))
        if self._teacher_host == "teacher":
            self._worker("teacher", TRAIN_PRELOAD, self._seat("teacher", 0))
        self.engines.spawn_first(self._places)
        self._served.spawn(self._places)

    @property
    def _teacher_host(self) -> str | None:
        """The worker of the teacher role: a rank computes, and one that only asks engines sits with the rollout."""
        opd = self._config.distillation
        return None if not opd.use_opd else "teacher" if opd.opd_type == "megatron" else "rollout"

    @property
    def _trained(self) -> list[str]:
        return [role for role in TRAINED_ROLES if role in self._config.resource]

    def _spawn_engine(self, name: str, options: Mapping[str, Any]) -> Any:
        self._worker(name, (), options)
        return self._workers[name]

    @property
    def _places(self) -> Placement:
        if self._placement is None:
            raise InternalError("workers are created after their places")
        return self._placement

    def _seat(self, role: str, place: int) -> Mapping[str, Any]:
        return self._places.seat(role, place).options

    def _worker(
        self, name: str, preload: tuple[str, ...], options: Mapping[str, Any], env: Mapping[str, str] | None = None
    ) -> None:
        import ray

        self._workers[name] = (
            ray.remote(Worker)
            .options(name=name, namespace=self._namespace, max_concurrency=1000, **options)
            .remote(name, self._core_share() | dict(env or {}), preload, str(self._folder.log(name)), self._spread)
        )
        self._link_log(name)

    def _link_log(self, name: str) -> None:
        if self._logs is not None:
            self._logs.add(name, self._folder.log(name))

    def _core_share(self) -> dict[str, str]:
        """Where the processes of one node tell that they are at work. A deterministic run pins its threads."""
        section = self._config.cluster
        shared = section.lend_cores and not section.deterministic and not self._spread
        return {CORE_SHARE: str(self._shared_dir / "cores")} if shared else {}

    async def _rank_environment(self, role: str) -> None:
        """Tell the ranks of a role where they meet; one rank needs no process group."""
        world = self._config.resource[role].gpus
        if world == 1:
            return
        first = await self._await(self._workers[f"{role}-0"].ready.remote(), f"{role}-0")
        port = await self._await(self._workers[f"{role}-0"].free_port.remote(), f"{role}-0")
        for rank in range(world):
            env = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0"}
            env |= {"MASTER_ADDR": first["host"], "MASTER_PORT": str(port)}
            await self._await(self._workers[f"{role}-{rank}"].set_env.remote(env), f"{role}-{rank}")

    async def _build_roles(self, wiring: Wiring) -> Any:
        config, build = self._config, "relax.core.build:"
        ranks = {role: range(config.resource[role].gpus) for role in self._trained}
        builders = {"actor": build + "build_actor", "critic": "relax.core.build_critic:build_critic"}
        forward = [role for role in FORWARD_ROLES if role in config.resource]
        async with asyncio.TaskGroup() as building:
            building.create_task(self._build("rollout", "rollout", build + "build_rollout", config, wiring))
            trained = {
                (role, rank): building.create_task(
                    self._build(f"{role}-{rank}", role, builders[role], config, wiring, rank)
                )
                for role, own in ranks.items()
                for rank in own
            }
            for role in forward:
                building.create_task(self._build(role, role, build + "build_forward", role, config, wiring))
            if self._teacher_host == "teacher":
                building.create_task(self._build("teacher", "teacher", BUILD_TEACHER, config, wiring))
        await self._build("rollout", "advantages", build + "build_advantages", config, wiring)
        if self._teacher_host == "rollout":
            await self._build("rollout", "teacher", BUILD_TEACHER, config, wiring)
        if config.has_judge:
            await self._build("rollout", "genrm", BUILD_GENRM, config, wiring)
        return Roles(
            rollout=self._handle("rollout", "rollout"),
            advantages=self._handle("rollout", "advantages"),
            **{
                role: RemoteGroup([self._handle(f"{role}-{rank}", role) for rank in own])
                for role, own in ranks.items()
            },
            **{role: self._handle(role, role) for role in forward},
            teacher=self._handle(self._teacher_host, "teacher") if self._teacher_host else None,
            facts={
                "actor": trained["actor", 0].result(),
                "http": self.http_address,
                "engines": dict(wiring.engine_urls),
            },
        )

    async def _build(self, worker: str, role: str, path: str, *args: Any) -> Any:
        self._hosting.add(worker)
        return await self._await(self._workers[worker].build.remote(role, path, args), worker)

    async def _await(self, reference: Any, worker: str) -> Any:
        return await translated(reference, worker, self._folder.log(worker))

    def _handle(self, worker: str, role: str) -> Any:
        return RemoteRole(role, self._workers[worker], self._folder.log(worker))

    def _doors(self) -> dict[str, str]:
        """{role: worker} of the roles that have routes."""
        doors = {"rollout": "rollout", "advantages": "rollout", **{role: f"{role}-0" for role in self._trained}}
        doors |= {role: role for role in FORWARD_ROLES if role in self._config.resource}
        if self._teacher_host is not None:
            doors["teacher"] = self._teacher_host
        if self._config.has_judge:
            doors["genrm"] = "rollout"
        return doors

    def _start_doors(self, card: str | None) -> None:
        """One proxy, one application a role, all at once."""
        from ray import serve

        from relax.core.doors import control_app, role_app

        section = self._config.cluster
        port = section.serve_port or free_ports(section.serve_host, 1)[0]
        self._serving = True
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # its import has set another level
        serve.start(http_options={"host": section.serve_host, "port": port})
        doors = self._doors()
        targets = [
            serve.RunTarget(role_app(role, worker, self._namespace), name=role, route_prefix=f"/{role}")
            for role, worker in doors.items()
        ]
        control = control_app(
            doors,
            self._namespace,
            metrics=bool(self._config.logging.use_metrics_service),
            card=card,
            cards_per_engine=section.rollout_num_gpus_per_engine,
        )
        targets.append(serve.RunTarget(control, name="control", route_prefix="/"))
        serve.run_many(targets)
        self._control = serve.get_app_handle("control")
        self.http_address = f"http://{section.serve_host}:{port}"
        logger.info("doors open address=%s roles=%s", self.http_address, ",".join(doors))

    # ------------------------------------------------------------------ while it runs

    async def published(self, manifest: WeightManifest, engines: Mapping[str, int]) -> None:
        """Tell the `control` door. It only reports versions, so training goes on without it."""
        if self._control is None:
            return
        try:
            async with asyncio.timeout(DOOR_TIMEOUT_S):
                await self._control.published.remote(manifest.to_json(), dict(engines))
        except Exception as error:  # the log is told: a door that does not answer must not end the run
            logger.warning("the control door was not told version=%d error=%r", manifest.version, error)

    @property
    def metrics_door(self) -> MetricsDoor | None:
        return _MetricsDoor(self._control) if self._control and self._config.logging.use_metrics_service else None

    async def watch(self) -> None:
        """Raise when a process that the run needs has died; cancelled when the run ends."""
        assert self._bus is not None
        try:
            async with asyncio.TaskGroup() as watching:
                watching.create_task(self._bus.watch())
                if self._router is not None:
                    watching.create_task(self._watch_router(self._router))
                for name in self._workers:
                    if not is_engine(name):
                        watching.create_task(self._watch_worker(name))
                for name in self._served.names:
                    watching.create_task(self._served.watch(name))
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _watch_router(self, router: RouterProcess) -> None:
        raise EngineLost(await router.wait_ended())

    async def _watch_worker(self, name: str) -> None:
        """Raise when the worker of a role dies; the engines' deaths are the keeper's business."""
        await self._await(self._workers[name].wait_stopped.remote(), name)

    # ------------------------------------------------------------------ stop

    async def stop(self) -> None:
        """Stop roles, engines, router, doors, bus, cluster, in this order. Errors are logged, nothing is skipped."""
        if self._threads:
            await asyncio.wait(self._threads, timeout=THREAD_WAIT_S)
        self.engines.close()
        if self._cluster is None:
            return
        engines = [name for name in self._workers if is_engine(name)]
        others = [name for name in self._workers if name not in engines]
        for names in (others, engines):
            await asyncio.gather(*(self._stop_worker(name) for name in names))
        for step in (self._stop_router, self._stop_doors, self._stop_bus, self._stop_cluster):
            try:
                await step()
            except Exception:  # the log is told; what comes after must stop all the same
                logger.exception("shutdown step failed step=%s", step.__name__)

    async def _stop_worker(self, name: str, wait_s: float = WORKER_STOP_S) -> None:
        import ray

        worker = self._workers.pop(name)
        if name in self._hosting:  # others hold nothing yet, and may still be importing
            try:
                await asyncio.wait_for(translated(worker.stop.remote(), name), wait_s)
            except Exception as error:  # the log is told; a worker that is dead already has nothing to stop
                logger.info("worker did not stop by itself worker=%s error=%s", name, str(error).splitlines()[:1])
        ray.kill(worker)

    async def _stop_router(self) -> None:
        if self._router is not None:
            await self._router.stop()

    async def _stop_doors(self) -> None:
        if self._serving and self._cluster is not None and not self._cluster.private:
            from ray import serve

            await asyncio.to_thread(serve.shutdown)  # a private cluster takes its doors along

    async def _stop_bus(self) -> None:
        if self._bus is not None:
            await asyncio.to_thread(self._bus.close)

    async def _stop_cluster(self) -> None:
        if self._placement is not None:
            await asyncio.to_thread(self._placement.remove)
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.close)


class _MetricsDoor:
    """The board in the `control` door, by its handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def show_metrics(self, board: str, first: int, rows: Sequence[Any]) -> Any:
        return await self._handle.show_metrics.remote(board, first, rows)

    async def take_reports(self, board: str, after: int, wait_s: float) -> Any:
        return await self._handle.take_reports.remote(board, after, wait_s)


def is_engine(worker: str) -> bool:
    """The worker owns an engine's process: engine-0, teacher-engine-0."""
    return worker.startswith("engine-") or "-engine-" in worker


def take_signals_back() -> None:
    """Install Python's handlers again: Ray's core replaces that of SIGTERM by one that aborts the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)
            signal.siginterrupt(number, False)


def check_port_is_free(host: str, port: int) -> None:
    """Raise before anything starts when another process listens there; port 0 is always free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"--serve-port {port} on --serve-host {host} cannot be used ({error.strerror}): another run may hold "
                "it; give another port, 0 for any free one, or --no-serve-http"
            ) from None


def _python_path() -> str:
    """User hooks are imported in workers by the path that the driver has: where the command was started."""
    paths = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(dict.fromkeys(paths))
