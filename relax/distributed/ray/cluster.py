# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Connection to a Ray cluster: the one that is there, else a private one that lives as long as this process."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax.distributed.ray.reaper import Reaper
from relax.utils.errors import InfrastructureError
from relax.utils.owned_folder import owned_folder, remove_abandoned

logger = logging.getLogger(__name__)

SLOT = "slot"  # the custom resource that stands for a card where there are no GPUs
MIN_CPUS = 16  # logical: TransferQueue's actors ask for one each, and a start with too few never ends
OBJECT_STORE_BYTES = 256 << 20
CONNECT_S = 5.0
SPARE_SLOTS = 64  # of a private cluster, for engines that join: a slot is only a number


@dataclass
class Cluster:
    """A connected cluster. `private` ones are shut down by `close`."""

    address: str
    private: bool
    gpus: int
    slots: float = 0.0  # of the resource that stands for a card
    free_slots: float = 0.0
    node: str = ""  # the resource that only this process's node has
    here: Mapping[str, float] = field(default_factory=dict)  # resources of that node, used ones included
    host: str = ""  # address of that node
    session: Path | None = None  # folder of a joined cluster's session on this node
    folder: ExitStack = field(default_factory=ExitStack)  # holds the folder of a private cluster

    @property
    def card(self) -> str | None:
        """The resource that is counted as cards; None where the cluster has neither GPUs nor slots."""
        if self.gpus > 0:
            return "GPU"
        return SLOT if self.slots > 0 else None

    def close(self) -> None:
        """Disconnect; a private cluster ends, and its folder goes."""
        import ray

        ray.shutdown()
        self.folder.close()


def ray_folder() -> Path:
    """Where Ray's own commands keep their sessions, /tmp/ray unless a variable says otherwise."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


def current_cluster() -> Path:
    """The file in which `ray start` writes the address of this node's cluster."""
    return ray_folder() / "ray_current_cluster"


def joins_cluster() -> bool:
    """Whether `connect` will look for a cluster that is there."""
    return bool(os.environ.get("RAY_ADDRESS")) or current_cluster().exists()


def connect(*, namespace: str, slots: int, dashboard: bool, env: Mapping[str, str]) -> Cluster:
    """Join the cluster of RAY_ADDRESS, else the one that `ray start` started here, else start a private one.

    `env` is set for every process of the run. An `http://` RAY_ADDRESS is the address of Ray's job server, where
    `ray job submit` takes it; it names no cluster that a driver could join.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("http://") or address.startswith("https://"):
        logger.info("RAY_ADDRESS=%s is a job address; looking for the cluster of this node instead", address)
        os.environ.pop("RAY_ADDRESS")
        address = "auto"
    elif not address and _answers(current_cluster()):
        address = "auto"
    before_import()
    if not address:
        _require_token()  # read at the import too
    _quiet_logs()
    return _join(address, namespace, env) if address else _start_private(namespace, slots, dashboard, env)


def _answers(path: Path) -> bool:
    """Whether the cluster whose address the file holds is there; the file of one that was killed stays."""
    try:
        host, _, port = path.read_text().strip().rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def before_import() -> None:
    """What Ray reads when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A thread that still starts something when the run is stopped must fail, not start a second cluster.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"


def _quiet_logs() -> None:
    """Only what went wrong reaches the console; the driver handles signals itself, on its own event loop."""
    import ray  # noqa: F401 - sets its loggers up

    logging.getLogger("ray._private.worker").addFilter(lambda record: "SIGTERM handler" not in record.getMessage())
    logging.getLogger("ray").setLevel(logging.WARNING)


def _join(address: str, namespace: str, env: Mapping[str, str]) -> Cluster:
    import ray

    try:
        context = ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": _without_job_variables(env)},
        )
    except ConnectionError as error:
        raise InfrastructureError(
            f"RAY_ADDRESS={address}: {error}; check it with `ray status`, or unset it to start a private cluster"
        ) from error
    total, free = ray.cluster_resources(), ray.available_resources()
    gpus, slots, free_slots = int(total.get("GPU", 0)), total.get(SLOT, 0.0), free.get(SLOT, 0.0)
    session = Path(context.address_info["session_dir"])
    return Cluster(address, False, gpus, slots, free_slots, *_this_node(), session)


def _without_job_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that this Ray job's own runtime environment leaves open: it wins, and Ray refuses a second value."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    given = (job.get("runtime_env") or {}).get("env_vars") or {}
    return {name: value for name, value in env.items() if name not in given}


def _this_node() -> tuple[str, Mapping[str, float], str]:
    """(name of the resource that stands for this process's node, all resources of the node, its address)."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    names = [name for name in node["Resources"] if name.startswith("node:") and "__" not in name]
    return names[0], node["Resources"], node["NodeManagerAddress"]


def _start_private(namespace: str, slots: int, dashboard: bool, env: Mapping[str, str]) -> Cluster:
    # Its processes inherit this environment, which saves a runtime environment and keeps started workers usable.
    os.environ.update(env)
    for name in ("READY", "HEALTH"):  # a proxy that is slow on a busy machine is not replaced
        os.environ.setdefault(f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S", "60")
    # Ray lets workers give way to everything else (nice 15): beside other jobs they all but stand still.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    for path in remove_abandoned(Path("/tmp"), "rlx-*"):
        logger.info("removed what a killed run has left path=%s", path)
    folder = ExitStack()  # below /tmp, because socket paths have a limit
    temp_dir = folder.enter_context(owned_folder(Path(tempfile.mkdtemp(prefix="rlx-", dir="/tmp"))))
    folder.callback(Reaper(temp_dir).dismiss)
    options: dict[str, Any] = {}
    if _cuda_gpus() == 0:
        options["num_gpus"] = 0
    try:
        try:
            context = _init_private(temp_dir, namespace, slots, dashboard, options)
        except Exception as error:  # Ray waits 30 s, a constant of its own, for processes that a busy machine starts
            if "timed out during startup" not in str(error):
                raise
            logger.warning("ray did not start in its 30 s on this busy machine; trying once more")
            ray.shutdown()
            context = _init_private(temp_dir, namespace, slots, dashboard, options)
    except Exception as error:  # Ray raises many kinds; whatever had started ends here
        ray.shutdown()
        folder.close()
        raise InfrastructureError(f"Ray did not start: {type(error).__name__}: {error}") from error
    logger.info("private ray cluster started address=%s", context.address_info["gcs_address"])
    gpus, places = int(ray.cluster_resources().get("GPU", 0)), float(max(1, slots))
    address = context.address_info["gcs_address"]
    return Cluster(address, True, gpus, places, places, *_this_node(), folder=folder)


def _require_token() -> None:
    """Ray listens on every interface, and who reaches it can run code: only this run's processes know the token."""
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _init_private(temp_dir: Path, namespace: str, slots: int, dashboard: bool, options: dict[str, Any]) -> Any:
    import ray

    return ray.init(
        address="local",
        namespace=namespace,
        num_cpus=max(MIN_CPUS, os.cpu_count() or 1),
        resources={SLOT: max(1, slots) + SPARE_SLOTS},
        include_dashboard=dashboard,
        log_to_driver=False,
        logging_level=logging.WARNING,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=str(temp_dir),
        _node_ip_address="127.0.0.1",
        **options,
    )


def _cuda_gpus() -> int:
    """GPUs that a training process could use, without importing torch."""
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*"))
