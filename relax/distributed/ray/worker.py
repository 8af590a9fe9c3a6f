# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The one Ray actor class: a process that hosts plain role objects and calls their methods.

A role's class knows nothing of Ray. A worker builds it in its own process from an import path and plain arguments, so
heavy imports happen there, and torch never enters a Serve door.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax.utils.errors import InfrastructureError, InternalError
from relax.utils.garbage import hold_while_loading, spare_loaded_objects
from relax.utils.http_utils import close_session
from relax.utils.stacks import answer_as

LOOPBACK = "127.0.0.1"
# Launchers of several machines set these for processes of their own; a training rank is told its own ones.
RENDEZVOUS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Worker:
    """Hosts roles by name. Every method is async, so calls interleave on one event loop."""

    def __init__(
        self,
        name: str,
        env: Mapping[str, str],
        preload: Sequence[str],
        log_path: str | None,
        several_nodes: bool = False,
    ) -> None:
        hold_while_loading()
        self._name = name
        for variable in RENDEZVOUS:
            os.environ.pop(variable, None)
        if several_nodes:  # collectives must not take the interface of the host's name, which may be loopback
            interface = interface_of(_node_ip())
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, interface)
        os.environ.update(env)
        if log_path is not None:
            _log_to(Path(log_path))
        answer_as(name)
        for module in preload:  # import while other processes start
            importlib.import_module(module)
        self._roles: dict[str, Any] = {}
        self._stopped = asyncio.Event()

    async def ready(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "host": _node_ip()}

    async def free_port(self) -> int:
        """A port of this node that is free now."""
        with socket.socket() as held:
            held.bind(("", 0))
            return held.getsockname()[1]

    async def set_env(self, env: Mapping[str, str]) -> None:
        os.environ.update(env)

    async def build(self, role: str, path: str, args: tuple[Any, ...]) -> Any:
        """Make a role by `module:function(*args)`, start it, and return what `start` returned."""
        module, _, function = path.partition(":")
        built = getattr(importlib.import_module(module), function)(*args)
        self._roles[role] = built
        started = await built.start() if hasattr(built, "start") else None
        spare_loaded_objects()
        return started

    async def call(self, role: str, method: str, args: tuple[Any, ...]) -> Any:
        if role not in self._roles:
            raise InternalError(f"worker {self._name} hosts {sorted(self._roles)}, not {role!r}")
        result = getattr(self._roles[role], method)(*args)
        return await result if inspect.isawaitable(result) else result

    async def wait_stopped(self) -> None:
        """Return when the worker is told to stop. A caller that waits here hears at once when the process dies."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Stop every role, the last one first; the first error is raised after all have been asked."""
        self._stopped.set()
        errors = []
        for role in reversed(list(self._roles)):
            built = self._roles.pop(role)
            try:
                await asyncio.wait_for(built.stop(), 60.0)
            except Exception as error:  # the caller is told below; the other roles must stop too
                errors.append(error)
        await close_session()
        if errors:
            raise errors[0]


def _log_to(path: Path) -> None:
    """Logs and prints of this process go to its own file of the run folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = file, file
    handler = logging.StreamHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def interface_of(address: str) -> str:
    """Name of this machine's network interface that has `address`."""
    import psutil

    interfaces = psutil.net_if_addrs()
    for name, addresses in interfaces.items():
        if any(entry.address == address for entry in addresses):
            return name
    raise InfrastructureError(f"no network interface of this machine has the address {address} of its Ray node")


def _node_ip() -> str:
    import ray

    return ray.util.get_node_ip_address()
